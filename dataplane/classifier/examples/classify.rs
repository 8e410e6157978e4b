//! Which rule matches a packet? Reads SDF filters as PCF and SMF write them, classifies packets given on the
//! command line, and reports faults of the rules. Try
//!
//! ```sh
//! cargo run -p classifier --example classify
//! cargo run -p classifier --example classify -- --help
//! cargo run -p classifier --example classify -- --backend tss --rules my.rules "tcp 192.0.2.9:443 10.45.0.2:5000"
//! ```
#![forbid(unsafe_code)]

use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use classifier::sdf::{Direction, SdfFilter};
use classifier::{Backend, Key, Rule, audit};

const HELP: &str = "\
Classifies packets by SDF filters and says which rule wins.

usage: classify [OPTIONS] [PACKET]...

  PACKET            \"<protocol> <source>[:port] <destination>[:port]\", protocol as number, tcp, udp or icmp:
                    \"tcp 192.0.2.9:443 10.45.0.2:5000\", \"udp [2001:db8::1]:53 [fd00::2]:5000\", \"1 10.0.0.1 10.0.0.2\"
  --rules FILE      a rule per line: \"<precedence> <filter>\", the lower precedence first; # begins a comment.
                    A filter is text as in TS 29.212: \"permit out 6 from 192.0.2.0/24 80,443 to assigned\"
  --uplink          packets come from the UE: source and destination of the filters are exchanged
  --backend NAME    how to look up; all give the same answer
  --help            this text

Without FILE and PACKET an example is shown.
";

const RULES: &str = "\
100 permit out 17 from 192.0.2.53 53 to assigned        # name server
200 permit out 6 from 192.0.2.0/24 80,443 to assigned   # our web servers
210 permit out 6 from 192.0.2.7 443 to assigned         # one of them, too late
300 permit out ip from 2001:db8::/32 to any
900 permit out ip from any to assigned                  # everything else
";

const PACKETS: [&str; 4] = [
    "udp 192.0.2.53:53 10.45.0.2:40000",
    "tcp 192.0.2.7:443 10.45.0.2:5000",
    "icmp 198.51.100.1 10.45.0.2",
    "tcp [2001:db8::7]:22 [fd00:45::2]:5000",
];

/// What was asked for.
struct Options {
    rules: String,
    packets: Vec<String>,
    direction: Direction,
    backend: Backend,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let outcome = match options(&mut arguments) {
        Ok(None) => print(HELP),
        Ok(Some(options)) => run(&options),
        Err(error) => Err(error),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error is closed, the exit code still tells.
            let _ = writeln!(io::stderr(), "classify: {error}\n(--help tells how it is used)");
            ExitCode::from(2)
        }
    }
}

/// Parses the arguments; `None` when only help is wanted.
fn options(arguments: &mut impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let (mut file, mut packets) = (None, Vec::new());
    let (mut direction, mut backend) = (Direction::Downlink, Backend::Auto);
    while let Some(argument) = arguments.next() {
        let mut operand = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--help" | "-h" => return Ok(None),
            "--rules" => file = Some(operand()?),
            "--backend" => backend = operand()?.parse().map_err(|error| format!("--backend: {error}"))?,
            "--uplink" => direction = Direction::Uplink,
            unknown if unknown.starts_with('-') => return Err(format!("there is no option {unknown}")),
            _ => packets.push(argument),
        }
    }
    let rules = match &file {
        Some(file) => std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?,
        None => RULES.to_owned(),
    };
    if packets.is_empty() && file.is_none() {
        packets = PACKETS.map(str::to_owned).to_vec();
    }
    Ok(Some(Options { rules, packets, direction, backend }))
}

/// One rule per combination of ports. The value is the line number, by which the reader knows the rule.
fn rules(text: &str, direction: Direction) -> Result<Vec<Rule>, String> {
    let mut rules = Vec::new();
    for (line, value) in text.lines().zip(1u32..) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let wrong = |what: String| format!("rule in line {value}: {what}");
        let (precedence, filter) =
            line.split_once(char::is_whitespace).ok_or_else(|| wrong("a filter is missing".to_owned()))?;
        let precedence =
            precedence.parse().map_err(|_| wrong(format!("{precedence:?} is not a precedence")))?;
        let filter = SdfFilter::parse(filter).map_err(|error| wrong(error.to_string()))?;
        for filter in filter.filters(direction) {
            rules.push(Rule { id: rules.len() as u32, precedence, value, filter });
        }
    }
    Ok(rules)
}

fn packet(text: &str) -> Result<Key, String> {
    let wrong = |what: &str| format!("packet {text:?}: {what}");
    let words: Vec<&str> = text.split_whitespace().collect();
    let [protocol, source, destination] = words[..] else {
        return Err(wrong("a protocol and two addresses are expected, in quotes"));
    };
    let protocol = match protocol {
        "icmp" => 1,
        "tcp" => 6,
        "udp" => 17,
        number => number.parse().map_err(|_| wrong("the protocol is a number, tcp, udp or icmp"))?,
    };
    let end = |text: &str| match (text.parse::<SocketAddr>(), text.parse::<IpAddr>()) {
        (Ok(socket), _) => Ok((socket.ip(), Some(socket.port()))),
        (_, Ok(address)) => Ok((address, None)),
        _ => Err(wrong(&format!("{text:?} is not an address, with or without :port"))),
    };
    let ((from, from_port), (to, to_port)) = (end(source)?, end(destination)?);
    if from.is_ipv4() != to.is_ipv4() {
        return Err(wrong("one address is IPv4, the other IPv6"));
    }
    let key = Key::new(from, to, protocol);
    match (from_port, to_port) {
        (Some(from), Some(to)) => Ok(key.with_ports(from, to)),
        (None, None) => Ok(key),
        _ => Err(wrong("only one of the two has a port")),
    }
}

fn run(options: &Options) -> Result<(), String> {
    let rules = rules(&options.rules, options.direction)?;
    let keys = options.packets.iter().map(|text| packet(text)).collect::<Result<Vec<Key>, String>>()?;
    let mut classifier = options.backend.build();
    classifier.insert_all(&rules).map_err(|error| error.to_string())?;
    // All packets in one batch, as a user plane does it.
    let mut verdicts = vec![None; keys.len()];
    classifier.classify(&keys, &mut verdicts);

    let lines: Vec<&str> = options.rules.lines().collect();
    let line = |number: u32| lines.get(number as usize - 1).map_or("", |line| line.trim());
    let mut text = String::new();
    for (packet, verdict) in options.packets.iter().zip(verdicts) {
        let winner =
            verdict.map_or("no rule".to_owned(), |number| format!("line {number}: {}", line(number)));
        text.push_str(&format!("{packet}\n    {winner}\n"));
    }
    let of = |id: u32| rules.get(id as usize).map_or(0, |rule| rule.value);
    for finding in audit::audit(&rules) {
        text.push_str(&match finding {
            audit::Finding::NeverMatches { rule } => format!("note: line {} can never match\n", of(rule)),
            audit::Finding::Duplicate { rule, of: first } => {
                format!("note: line {} repeats line {}, which comes first\n", of(rule), of(first))
            }
            audit::Finding::Shadowed { rule, by } => {
                format!("note: line {} has no effect behind line {}\n", of(rule), of(by))
            }
        });
    }
    text.push_str(&format!(
        "{} rules from {} lines; `{}` holds them in {} octets\n",
        rules.len(),
        lines.len(),
        options.backend,
        classifier.memory_bytes()
    ));
    print(&text)
}

/// A closed pipe (`| head`) is not an error.
fn print(text: &str) -> Result<(), String> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(format!("standard output: {error}")),
        _ => Ok(()),
    }
}
