-- Wireshark dissector for CoTCP, versions 1 and 2 (../SPEC.md; section numbers below are of that text).
--
--   wireshark -X lua_script:cotcp.lua capture.pcapng        or copy this file to Wireshark's plugin folder
--
-- A connection that begins with a HELLO is recognised by itself. Version 1 has nothing to be recognised by: name its
-- ports in the preference "TCP ports" (-o cotcp.ports:7000), or use "Decode as". Inside TLS, ALPN `cotcp` selects it.
--
-- Flow: Wireshark cuts the stream into frames, also over segments (dissect_tcp_pdus). Each frame is read twice: when it
-- is seen first, `interpret` and `track` work out what depends on earlier frames (version, calls) and keep that in a
-- record; `show` puts frame and record into the tree, then and whenever the frame is looked at again.
-- Works with Wireshark 3.6 and newer.

local cotcp = Proto("cotcp", "CoTCP")

local HEADER = 6
local HELLO_ID = 0xFFFFFFFF
local MAGIC = "00436f544350"
local EXTENDED = 0x80000000
local RESERVED = 0x40000000
local CALLS = 0x40000000
local CREDIT_MAX = 0x7FFFFFFF
local TEXT_MAX = 1024
local TRACE_MAX = 128

local REQUEST, RESPONSE, DATA, ERROR, CANCEL, CREDIT, PING, PONG, GO_AWAY = 1, 2, 3, 4, 5, 6, 7, 8, 9

local TYPES = {
    [REQUEST] = "REQUEST", [RESPONSE] = "RESPONSE", [DATA] = "DATA", [ERROR] = "ERROR", [CANCEL] = "CANCEL",
    [CREDIT] = "CREDIT", [PING] = "PING", [PONG] = "PONG", [GO_AWAY] = "GO_AWAY",
}
local CODES = {
    [0] = "NONE", "PROTOCOL", "INTERNAL", "REFUSED", "OVERLOADED", "DEADLINE", "CANCELLED", "TOO_LARGE",
    "FLOW_CONTROL", "ABUSE", "TIMEOUT",
}
local ROLES = { [1] = "client", [2] = "server" }
local OPTIONS = { [1] = "DEADLINE", [2] = "PRIORITY", [3] = "TRACE", [4] = "SIZE" }
local HELLO_OPTIONS = { [1] = "MAX_CALLS", [2] = "CALL_WINDOW", [3] = "CONNECTION_WINDOW", [4] = "MAX_MESSAGE" }

-- Frames that only one side sends (§3), and those that belong to the connection.
local SIDE = { [REQUEST] = "client", [RESPONSE] = "server", [ERROR] = "server", [CANCEL] = "client" }
local OF_CONNECTION = { [PING] = true, [PONG] = true, [GO_AWAY] = true }
-- Octets that follow type and flags at least.
local NEEDS = {
    [REQUEST] = 1, [RESPONSE] = 1, [DATA] = 0, [ERROR] = 2, [CANCEL] = 2, [CREDIT] = 4, [PING] = 8, [PONG] = 8, [GO_AWAY] = 2,
}

local f = {
    id = ProtoField.uint32("cotcp.id", "ID", base.HEX),
    length = ProtoField.uint16("cotcp.length", "Length", base.DEC),
    from = ProtoField.string("cotcp.from", "From"),
    version = ProtoField.uint8("cotcp.version", "Version of the connection", base.DEC),
    call = ProtoField.uint32("cotcp.call", "Call", base.DEC),
    request = ProtoField.bool("cotcp.request", "Begins a request"),
    response = ProtoField.bool("cotcp.response", "Begins a response"),
    type = ProtoField.uint8("cotcp.type", "Type", base.DEC, TYPES),
    flags = ProtoField.uint8("cotcp.flags", "Flags", base.HEX),
    more = ProtoField.bool("cotcp.flags.more", "MORE", 8, nil, 0x01),
    one_way = ProtoField.bool("cotcp.flags.one_way", "ONE_WAY", 8, nil, 0x02),
    not_processed = ProtoField.bool("cotcp.flags.not_processed", "NOT_PROCESSED", 8, nil, 0x01),
    connection = ProtoField.bool("cotcp.flags.connection", "CONNECTION", 8, nil, 0x01),
    options_length = ProtoField.uint8("cotcp.options_length", "Length of the options", base.DEC),
    option = ProtoField.none("cotcp.option", "Option"),
    option_type = ProtoField.uint8("cotcp.option.type", "Type", base.DEC, OPTIONS),
    option_length = ProtoField.uint8("cotcp.option.length", "Length", base.DEC),
    option_value = ProtoField.bytes("cotcp.option.value", "Value"),
    deadline = ProtoField.uint32("cotcp.deadline_ms", "Deadline (ms)", base.DEC),
    priority = ProtoField.uint8("cotcp.priority", "Priority", base.DEC),
    trace = ProtoField.string("cotcp.trace", "Tracing context"),
    size = ProtoField.uint64("cotcp.size", "Size of the whole body", base.DEC),
    body = ProtoField.bytes("cotcp.body", "Body"),
    code = ProtoField.uint16("cotcp.code", "Code", base.DEC),
    code_name = ProtoField.string("cotcp.code_name", "Code"),
    text = ProtoField.string("cotcp.text", "Text"),
    credit = ProtoField.uint32("cotcp.credit", "Credit (octets)", base.DEC),
    ping = ProtoField.bytes("cotcp.ping", "Octets to return"),
    surplus = ProtoField.bytes("cotcp.surplus", "Octets beyond the frame's fields"),
    hello = ProtoField.none("cotcp.hello", "HELLO"),
    hello_magic = ProtoField.bytes("cotcp.hello.magic", "Magic"),
    hello_role = ProtoField.uint8("cotcp.hello.role", "Role", base.DEC, ROLES),
    hello_version = ProtoField.uint8("cotcp.hello.version", "Version", base.DEC),
    hello_option = ProtoField.uint8("cotcp.hello.option", "Option", base.DEC, HELLO_OPTIONS),
    hello_option_length = ProtoField.uint8("cotcp.hello.option.length", "Length", base.DEC),
    hello_option_value = ProtoField.bytes("cotcp.hello.option.value", "Value"),
    max_calls = ProtoField.uint32("cotcp.hello.max_calls", "Calls at once", base.DEC),
    call_window = ProtoField.uint32("cotcp.hello.call_window", "Credit of each message", base.DEC),
    connection_window = ProtoField.uint32("cotcp.hello.connection_window", "Credit of the connection", base.DEC),
    max_message = ProtoField.uint32("cotcp.hello.max_message", "Largest message", base.DEC),
    response_in = ProtoField.framenum("cotcp.response_in", "Response in", base.NONE, frametype.RESPONSE),
    response_to = ProtoField.framenum("cotcp.response_to", "Response to", base.NONE, frametype.REQUEST),
    begun_in = ProtoField.framenum("cotcp.begun_in", "Call begun in", base.NONE),
    time = ProtoField.relative_time("cotcp.time", "Response time"),
    message_length = ProtoField.uint64("cotcp.message_length", "Length of the whole message", base.DEC),
    fragments = ProtoField.uint32("cotcp.fragments", "Frames of the message", base.DEC),
}
cotcp.fields = f

local HELLO_FIELDS = { f.max_calls, f.call_window, f.connection_window, f.max_message }

local function fault(name, text)
    return ProtoExpert.new("cotcp.bad." .. name, text, expert.group.MALFORMED, expert.severity.ERROR)
end
local function remark(name, text, group, severity)
    return ProtoExpert.new("cotcp." .. name, text, group, severity)
end

local e = {
    -- What the receiver ends the connection for (§3, §4.2, §5).
    short = fault("short", "The frame is shorter than its type needs"),
    reserved = fault("reserved", "The reserved bit of the ID is set"),
    unknown_type = fault("type", "Unknown type of frame"),
    option = fault("option", "An option does not fit"),
    side = fault("side", "This side does not send such frames"),
    call = fault("call", "A frame of the connection names a call"),
    id = fault("id", "An ID of 2^30 or above in a version 1 frame of a version 2 connection"),
    duplicate = fault("duplicate", "A request for a call that is open"),
    credit = fault("credit", "Credit of more than 2^31 - 1 octets"),
    ended = fault("ended", "DATA of a message that has ended"),
    -- What it ignores, or takes another way.
    hello = remark("hello.invalid", "Not a valid HELLO: a message of version 1", expert.group.PROTOCOL,
        expert.severity.WARN),
    echoed = remark("hello.echoed", "The HELLO came back: the connection stays version 1", expert.group.PROTOCOL,
        expert.severity.NOTE),
    none = remark("none", "The code NONE in an ERROR", expert.group.PROTOCOL, expert.severity.WARN),
    text_long = remark("text.long", "The text is longer than 1,024 octets", expert.group.PROTOCOL,
        expert.severity.WARN),
    surplus = remark("surplus.present", "Octets beyond the frame's fields", expert.group.PROTOCOL,
        expert.severity.WARN),
    flags = remark("flags.unknown", "Flags without meaning are set", expert.group.PROTOCOL, expert.severity.NOTE),
    no_call = remark("no_call", "No such call is open: ignored", expert.group.SEQUENCE, expert.severity.NOTE),
    failed = remark("failed", "The call failed", expert.group.RESPONSE_CODE, expert.severity.NOTE),
    go_away = remark("going_away", "No new calls are wanted", expert.group.SEQUENCE, expert.severity.CHAT),
    broken = remark("broken", "The connection is closed for an error", expert.group.RESPONSE_CODE,
        expert.severity.WARN),
}
cotcp.experts = e

cotcp.prefs.ports = Pref.range("TCP ports", "", "Ports of servers, for connections without a HELLO", 65535)
cotcp.prefs.version = Pref.enum("Version", 0, "For captures that begin within a connection", {
    { 1, "as negotiated in the capture", 0 }, { 2, "version 1", 1 }, { 3, "version 2", 2 },
}, false)

local tcp_stream = Field.new("tcp.stream")
local frame_time = Field.new("frame.time_epoch")

-- Per connection: who is the client, what was negotiated, the calls that are open and those that ended last.
local connections = {}
-- Per packet: the records of its frames, in order.
local packets = {}
-- The packet that is looked at, and how many of its frames were met.
local current = { number = nil, met = 0 }

function cotcp.init()
    connections, packets = {}, {}
    current = { number = nil, met = 0 }
end

local function contains(ranges, port)
    for from, to in tostring(ranges):gmatch("(%d+)%-?(%d*)") do
        from = tonumber(from)
        to = tonumber(to) or from
        if port >= from and port <= to then return true end
    end
    return false
end

local function endpoint(address, port)
    return tostring(address) .. " " .. port
end

-- The connection of this packet. The client speaks first (§1.1), unless the server's port says who is who.
local function connection_of(pinfo, hello)
    local stream = tcp_stream()
    local key = stream and stream.value or (endpoint(pinfo.src, pinfo.src_port) .. endpoint(pinfo.dst, pinfo.dst_port))
    local c = connections[key]
    if not c then
        local src, dst = endpoint(pinfo.src, pinfo.src_port), endpoint(pinfo.dst, pinfo.dst_port)
        local ports = cotcp.prefs.ports
        local by_server = contains(ports, pinfo.src_port) and not contains(ports, pinfo.dst_port)
        if hello and hello.valid then by_server = hello.role == 2 end
        c = { client = by_server and dst or src, frames = { client = 0, server = 0 } }
        c.open, c.ended, c.pings = {}, {}, {}
        connections[key] = c
    end
    return c
end

-- The body of a HELLO, checked as §2 says; nil if it is none at all.
local function read_hello(tvb)
    if tvb(0, 4):uint() ~= HELLO_ID or tvb:len() < HEADER + 6 then return nil end
    if tvb(HEADER, 6):bytes():tohex(true) ~= MAGIC then return nil end
    local hello = { valid = false, options = {} }
    if tvb:len() < HEADER + 8 then return hello end
    hello.role, hello.version = tvb(HEADER + 6, 1):uint(), tvb(HEADER + 7, 1):uint()
    local at, seen = HEADER + 8, {}
    local valid = ROLES[hello.role] ~= nil and hello.version >= 1
    while at < tvb:len() do
        if at + 2 > tvb:len() or at + 2 + tvb(at + 1, 1):uint() > tvb:len() then
            hello.rest = at
            return hello
        end
        local kind, length = tvb(at, 1):uint(), tvb(at + 1, 1):uint()
        table.insert(hello.options, { at = at, kind = kind, length = length })
        if HELLO_OPTIONS[kind] then
            valid = valid and not seen[kind] and length == 4
            local value = length == 4 and tvb(at + 2, 4):uint()
            -- A limit on the length of messages may be 0, the others may not; windows are credit.
            if value and kind ~= 4 then valid = valid and value > 0 end
            if value and (kind == 2 or kind == 3) then valid = valid and value <= CREDIT_MAX end
            seen[kind] = true
        end
        at = at + 2 + length
    end
    hello.valid = valid
    return hello
end

-- How this frame is to be read: the side it is from, and whether it is HELLO, version 1 or extended.
local function interpret(tvb, pinfo)
    local hello = read_hello(tvb)
    local c = connection_of(pinfo, hello)
    local from = endpoint(pinfo.src, pinfo.src_port) == c.client and "client" or "server"
    local record = { from = from, connection = c, remarks = {} }
    local first = c.frames[from] == 0
    c.frames[from] = c.frames[from] + 1
    local extended_id = tvb(0, 4):uint() >= EXTENDED
    if hello and hello.valid and from == "client" and first and hello.role == 1 and hello.version >= 2 then
        c.offered, record.hello = true, hello
    elseif hello and from == "server" and not c.version2 then
        record.hello = hello
        if hello.valid and hello.role == 2 and hello.version == 2 then c.version2 = true end
    elseif cotcp.prefs.version == 1 then
        record.extended = false
    elseif cotcp.prefs.version == 2 or (from == "client" and c.offered) or (from == "server" and c.version2) then
        record.extended = extended_id
    elseif hello then
        record.hello = hello
    end
    record.version = ((c.version2 or cotcp.prefs.version == 2) and cotcp.prefs.version ~= 1) and 2 or 1
    return record
end

-- Reads options of a REQUEST or RESPONSE into the tree; returns where the body begins, or nil if they do not fit.
local function options(tvb, tree, m)
    local length = tvb(8, 1):uint()
    tree:add(f.options_length, tvb(8, 1))
    local at, last = 9, 9 + length
    if last > tvb:len() then return nil end
    while at < last do
        if at + 2 > last or at + 2 + tvb(at + 1, 1):uint() > last then return nil end
        local kind, size = tvb(at, 1):uint(), tvb(at + 1, 1):uint()
        local value = size > 0 and tvb(at + 2, size) or nil
        local known = m.type == REQUEST and OPTIONS[kind]
        local branch = tree:add(f.option, tvb(at, 2 + size)):append_text(": " .. (known or "unknown type " .. kind))
        branch:add(f.option_type, tvb(at, 1))
        branch:add(f.option_length, tvb(at + 1, 1))
        if known == "DEADLINE" and size == 4 then
            branch:add(f.deadline, value)
        elseif known == "PRIORITY" and size == 1 and value:uint() <= 7 then
            branch:add(f.priority, value)
        elseif known == "TRACE" and size <= TRACE_MAX then
            branch:add(f.trace, value or tvb(at + 2, 0))
        elseif known == "SIZE" and size == 8 then
            branch:add(f.size, value)
        else
            if value then branch:add(f.option_value, value) end
            if known then m.faults.option = branch end
        end
        at = at + 2 + size
    end
    return last
end

local function code(tvb, tree, m)
    m.code = tvb(8, 2):uint()
    m.code_name = CODES[m.code] or (m.code >= 256 and "application " .. m.code or "unknown " .. m.code)
    tree:add(f.code, tvb(8, 2)):append_text(" (" .. m.code_name .. ")")
    tree:add(f.code_name, tvb(8, 2), m.code_name):set_hidden()
end

local function text(tvb, tree, m)
    if tvb:len() == 10 then return end
    local item = tree:add_packet_field(f.text, tvb(10), ENC_UTF_8)
    m.text = tvb(10):string(ENC_UTF_8)
    if tvb:len() - 10 > TEXT_MAX then m.faults.text_long = item end
end

local function body(tvb, tree, m, at)
    m.octets = tvb:len() - at
    if m.octets > 0 then tree:add(f.body, tvb(at)):set_text("Body: " .. m.octets .. " octets") end
end

-- What follows the flags, by type (§3).
local FIELDS = {
    [REQUEST] = function(tvb, tree, m)
        local at = options(tvb, tree, m)
        if at then body(tvb, tree, m, at) else m.faults.option = tree end
    end,
    [DATA] = function(tvb, tree, m) body(tvb, tree, m, 8) end,
    [ERROR] = function(tvb, tree, m)
        code(tvb, tree, m)
        text(tvb, tree, m)
        if m.code == 0 then m.faults.none = tree end
    end,
    [CANCEL] = function(tvb, tree, m)
        code(tvb, tree, m)
        m.surplus = 10
    end,
    [CREDIT] = function(tvb, tree, m)
        m.credit = tvb(8, 4):uint()
        local item = tree:add(f.credit, tvb(8, 4))
        if m.credit > CREDIT_MAX then m.faults.credit = item end
        m.surplus = 12
    end,
    [PING] = function(tvb, tree, m)
        m.ping = tvb(8, 8):bytes():tohex()
        tree:add(f.ping, tvb(8, 8))
        m.surplus = 16
    end,
    [GO_AWAY] = function(tvb, tree, m)
        code(tvb, tree, m)
        text(tvb, tree, m)
    end,
}
FIELDS[RESPONSE], FIELDS[PONG] = FIELDS[REQUEST], FIELDS[PING]

local function flags(tvb, tree, m)
    local value = tvb(7, 1):uint()
    local branch = tree:add(f.flags, tvb(7, 1))
    local known = 0
    local function flag(name, field, bit)
        branch:add(field, tvb(7, 1))
        m[name] = math.floor(value / bit) % 2 == 1
        known = known + bit
        if m[name] then branch:append_text(" " .. name:upper()) end
    end
    if m.type == REQUEST or m.type == RESPONSE or m.type == DATA then flag("more", f.more, 1) end
    if m.type == REQUEST then flag("one_way", f.one_way, 2) end
    if m.type == ERROR then flag("not_processed", f.not_processed, 1) end
    if m.type == CREDIT then flag("connection", f.connection, 1) end
    -- The known ones are the lowest.
    if value > known then m.faults.flags = branch end
end

-- A frame with the top bit of the ID set (§3).
local function extended(tvb, tree, m)
    m.call, m.name = m.id % CALLS, "cut frame"
    if m.id % EXTENDED >= RESERVED then m.faults.reserved = tree end
    if tvb:len() < HEADER + 2 then
        m.faults.short = tree
        return
    end
    m.type = tvb(6, 1):uint()
    m.name = TYPES[m.type] or "type " .. m.type
    tree:add(f.type, tvb(6, 1))
    if not TYPES[m.type] then
        m.faults.unknown_type = tree
        return
    end
    flags(tvb, tree, m)
    if SIDE[m.type] and SIDE[m.type] ~= m.from then m.faults.side = tree end
    if (OF_CONNECTION[m.type] or m.connection) and m.call ~= 0 then m.faults.call = tree end
    if tvb:len() < 8 + NEEDS[m.type] then
        m.faults.short = tree
        return
    end
    FIELDS[m.type](tvb, tree, m)
    if m.surplus and tvb:len() > m.surplus then m.faults.surplus = tree:add(f.surplus, tvb(m.surplus)) end
end

local function show_hello(tvb, tree, m, hello)
    m.name = "HELLO"
    local branch = tree:add(f.hello, tvb(HEADER))
    branch:add(f.hello_magic, tvb(HEADER, 6))
    if hello.role then
        branch:add(f.hello_role, tvb(HEADER + 6, 1))
        branch:add(f.hello_version, tvb(HEADER + 7, 1))
        m.text = (ROLES[hello.role] or "role " .. hello.role) .. ", version " .. hello.version
    end
    for _, option in ipairs(hello.options) do
        local item = branch:add(f.hello_option, tvb(option.at, 1))
        item:add(f.hello_option_length, tvb(option.at + 1, 1))
        local field = HELLO_FIELDS[option.kind]
        if field and option.length == 4 then
            item:add(field, tvb(option.at + 2, 4))
        elseif option.length > 0 then
            item:add(f.hello_option_value, tvb(option.at + 2, option.length))
        end
    end
    if not hello.valid then
        m.faults.hello = branch
    elseif m.from == "server" and hello.role == 1 then
        m.faults.echoed = branch
    end
end

-- Ends the call, and keeps it for what may still come.
local function finish(c, m, call)
    c.open[m.call] = nil
    c.ended[m.call] = call
end

local function answered(record, m, call, pinfo)
    call.response = call.response or pinfo.number
    if not m.more then
        record.time = frame_time().value - call.time
        finish(record.connection, m, call)
    end
end

-- Counts a fragment into the message that `side` sends; at its end the record knows the whole.
local function fragment(record, m, call, side)
    local message = call[side] or { octets = 0, frames = 0 }
    call[side] = message
    if message.ended then
        record.remarks.ended = true
        return
    end
    message.octets = message.octets + (m.octets or 0)
    message.frames = message.frames + 1
    message.ended = not m.more
    if message.ended and message.frames > 1 then record.message = message end
end

local function track_client(record, m, pinfo)
    local c = record.connection
    local call = c.open[m.call]
    if m.begins then
        if call then record.remarks.duplicate = true end
        call = { request = pinfo.number, time = frame_time().value, one_way = m.one_way }
        c.open[m.call], c.ended[m.call] = call, nil
        fragment(record, m, call, "client")
    elseif call and m.type == DATA then
        fragment(record, m, call, "client")
    elseif call and m.type == CANCEL then
        finish(c, m, call)
    elseif not call then
        record.remarks.no_call = true
        call = c.ended[m.call]
    end
    if call and call.one_way and not m.more and (m.begins or m.type == DATA) then finish(c, m, call) end
    return call
end

local function track_server(record, m, pinfo)
    local c = record.connection
    local call = c.open[m.call]
    if not call then
        record.remarks.no_call = true
        return c.ended[m.call]
    end
    if m.begins and call.server then
        record.remarks.duplicate = true
    elseif m.type == DATA or m.begins then
        fragment(record, m, call, "server")
        answered(record, m, call, pinfo)
    elseif m.type == ERROR then
        answered(record, m, call, pinfo)
    end
    return call
end

-- What depends on earlier frames: calls and their times. Done once, in the order of the capture.
local function track(record, m, pinfo)
    for _, name in ipairs({ "short", "reserved", "unknown_type", "option", "side", "call", "id" }) do
        if m.faults[name] then return end
    end
    local c = record.connection
    if m.type == PING then
        c.pings[m.from .. m.ping] = { request = pinfo.number, time = frame_time().value }
        record.call = c.pings[m.from .. m.ping]
    elseif m.type == PONG then
        local key = (m.from == "client" and "server" or "client") .. m.ping
        record.call = c.pings[key]
        if record.call then
            record.call.response = pinfo.number
            record.time = frame_time().value - record.call.time
            c.pings[key] = nil
        end
    elseif m.type == GO_AWAY or m.connection then
        return
    elseif m.from == "client" then
        record.call = track_client(record, m, pinfo)
    else
        record.call = track_server(record, m, pinfo)
    end
    record.begins = m.begins or m.type == PING
end

local function summary(m)
    local words = { m.name }
    if m.type ~= PING and m.type ~= PONG and m.type ~= GO_AWAY and not m.connection and m.name ~= "HELLO" then
        table.insert(words, string.format("%d", m.call))
    end
    for _, flag in ipairs({ "more", "one_way", "not_processed", "connection" }) do
        if m[flag] then table.insert(words, flag:upper()) end
    end
    if m.code_name then table.insert(words, m.code_name) end
    local line = table.concat(words, " ")
    if m.credit then line = line .. string.format(", %d octets", m.credit) end
    if m.octets then line = line .. string.format(", %d octets", m.octets) end
    if m.text then line = line .. ": " .. m.text end
    return line
end

local function generated(tree, field, value)
    tree:add(field, value):set_generated()
end

-- Puts what earlier and later frames say of this one into the tree.
local function relations(tree, record, m, pinfo)
    generated(tree, f.from, record.from)
    generated(tree, f.version, record.version)
    local call = record.call
    if call and record.begins and m.from == "client" or call and m.type == PING then
        if call.response then generated(tree, f.response_in, call.response) end
    elseif call and call.request ~= pinfo.number then
        local answers = m.type == PONG or m.from == "server" and (m.begins or m.type == DATA or m.type == ERROR)
        generated(tree, answers and f.response_to or f.begun_in, call.request)
    end
    if record.time then generated(tree, f.time, record.time) end
    if record.message then
        generated(tree, f.message_length, UInt64(record.message.octets))
        generated(tree, f.fragments, record.message.frames)
    end
    for name in pairs(record.remarks) do m.faults[name] = tree end
    if m.type == ERROR and not m.faults.side then m.faults.failed = tree end
    if m.type == GO_AWAY then m.faults[m.code and m.code > 0 and "broken" or "go_away"] = tree end
    -- In the order of the names, so that the same capture always reads the same.
    local names = {}
    for name in pairs(m.faults) do table.insert(names, name) end
    table.sort(names)
    for _, name in ipairs(names) do m.faults[name]:add_proto_expert_info(e[name]) end
end

-- The record of the frame that is met now, and whether it is met for the first time. A packet is always looked at as a
-- whole, so that its frames come in the same order again.
local function record_of(tvb, pinfo)
    if current.number ~= pinfo.number then current = { number = pinfo.number, met = 0 } end
    local records = packets[pinfo.number] or {}
    packets[pinfo.number] = records
    current.met = current.met + 1
    if not pinfo.visited then
        records[current.met] = interpret(tvb, pinfo)
        return records[current.met], true, current.met == 1
    end
    local index = (current.met - 1) % math.max(#records, 1) + 1
    return records[index] or interpret(tvb, pinfo), false, index == 1
end

-- One whole frame.
local function show(tvb, pinfo, root)
    local record, new, first_of_packet = record_of(tvb, pinfo)
    local tree = root:add(cotcp, tvb())
    local m = { from = record.from, id = tvb(0, 4):uint(), faults = {} }
    tree:add(f.id, tvb(0, 4))
    tree:add(f.length, tvb(4, 2))
    if record.extended then
        extended(tvb, tree, m)
    else
        m.call, m.name = m.id, record.from == "client" and "request" or "response"
        if record.version == 2 and not record.hello and m.id >= CALLS then m.faults.id = tree end
        if record.hello then show_hello(tvb, tree, m, record.hello) else body(tvb, tree, m, HEADER) end
    end
    m.begins = not record.extended or m.type == REQUEST or m.type == RESPONSE
    if not record.hello then
        generated(tree, f.call, m.call)
        if m.begins and not m.faults.side then
            generated(tree, m.from == "client" and f.request or f.response, true)
        end
    end
    if new then track(record, m, pinfo) end
    relations(tree, record, m, pinfo)
    local line = summary(m)
    tree:append_text(", " .. line)
    pinfo.cols.protocol = "CoTCP"
    if first_of_packet then pinfo.cols.info:set(line) else pinfo.cols.info:append("; " .. line) end
    return tvb:len()
end

local function frame_length(tvb, _, offset)
    return HEADER + tvb(offset + 4, 2):uint()
end

-- Called by name only: through `cotcp.dissector` Wireshark would count one layer more, and not put segments together.
local function dissect(tvb, _, tree)
    dissect_tcp_pdus(tvb, tree, HEADER, frame_length, show)
    return tvb:len()
end

function cotcp.dissector(tvb, pinfo, tree)
    return dissect(tvb, pinfo, tree)
end

-- A stream that begins with a client's HELLO can be nothing else.
local function recognise(tvb, pinfo, tree)
    if tvb:len() < HEADER + 8 or tvb(0, 4):uint() ~= HELLO_ID or tvb(HEADER + 6, 1):uint() ~= 1 then return false end
    if tvb(HEADER, 6):bytes():tohex(true) ~= MAGIC then return false end
    pinfo.conversation = cotcp
    dissect(tvb, pinfo, tree)
    return true
end

cotcp:register_heuristic("tcp", recognise)

local tcp_port = DissectorTable.get("tcp.port")
local ports = ""

function cotcp.prefs_changed()
    if cotcp.prefs.ports == ports then return end
    if ports ~= "" then tcp_port:remove(ports, cotcp) end
    ports = cotcp.prefs.ports
    if ports ~= "" then tcp_port:add(ports, cotcp) end
end

tcp_port:add_for_decode_as(cotcp)
-- Not in every build of Wireshark.
pcall(function() DissectorTable.get("tls.alpn"):add("cotcp", cotcp) end)
pcall(function() DissectorTable.get("tls.port"):add_for_decode_as(cotcp) end)
