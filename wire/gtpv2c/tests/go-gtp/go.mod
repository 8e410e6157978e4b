module godwit/gtpv2c-tests

go 1.24

require github.com/wmnsk/go-gtp v0.8.11
