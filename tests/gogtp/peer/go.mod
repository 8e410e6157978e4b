module godwit/gogtp

go 1.22

require (
	github.com/vishvananda/netlink v1.3.0
	github.com/wmnsk/go-gtp v0.8.11
	github.com/wmnsk/go-pfcp v0.0.24
	golang.org/x/sys v0.26.0
)

require (
	github.com/vishvananda/netns v0.0.4 // indirect
	golang.org/x/net v0.30.0 // indirect
)
