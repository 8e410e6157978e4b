module godwit/cotcpv1

go 1.19
