/* An independent SCTP peer for tests/usrsctp.rs, on libusrsctp.
 *
 *   usrsctp_peer server ADDRESS PORT UDP        echoes every message of one association, until its end
 *   usrsctp_peer client ADDRESS PORT UDP COUNT  sends COUNT messages on streams 0 and 1 with PPID 60 and growing
 *                                               sizes, checks that each comes back unchanged, shuts down
 * UDP is the encapsulation port on both sides, 0 for raw IP. Exit status 0 on success. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <usrsctp.h>

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void must(int ok, const char *what)
{
    if (!ok)
        fail(what);
}

static char buffer[1 << 20];

static ssize_t receive(struct socket *sock, struct sctp_rcvinfo *info)
{
    size_t filled = 0;
    for (;;) {
        socklen_t from_length = 0, info_length = sizeof *info;
        unsigned int info_type = 0;
        int flags = 0;
        ssize_t n = usrsctp_recvv(sock, buffer + filled, sizeof buffer - filled, NULL, &from_length, info,
                                  &info_length, &info_type, &flags);
        if (n <= 0)
            return n;
        filled += n;
        if (flags & MSG_EOR)
            return filled;
    }
}

static int transmit(struct socket *sock, const void *bytes, size_t length, uint16_t stream, uint32_t ppid)
{
    struct sctp_sndinfo info = {.snd_sid = stream, .snd_ppid = ppid};
    return usrsctp_sendv(sock, bytes, length, NULL, 0, &info, sizeof info, SCTP_SENDV_SNDINFO, 0) == (ssize_t)length;
}

static struct socket *open_socket(void)
{
    struct socket *sock = usrsctp_socket(AF_INET, SOCK_STREAM, IPPROTO_SCTP, NULL, NULL, 0, NULL);
    must(sock != NULL, "socket");
    int on = 1, large = 1 << 20;
    must(usrsctp_setsockopt(sock, IPPROTO_SCTP, SCTP_RECVRCVINFO, &on, sizeof on) == 0, "SCTP_RECVRCVINFO");
    must(usrsctp_setsockopt(sock, IPPROTO_SCTP, SCTP_NODELAY, &on, sizeof on) == 0, "SCTP_NODELAY");
    must(usrsctp_setsockopt(sock, SOL_SOCKET, SO_SNDBUF, &large, sizeof large) == 0, "SO_SNDBUF");
    must(usrsctp_setsockopt(sock, SOL_SOCKET, SO_RCVBUF, &large, sizeof large) == 0, "SO_RCVBUF");
    struct sctp_initmsg init = {.sinit_num_ostreams = 4, .sinit_max_instreams = 4};
    must(usrsctp_setsockopt(sock, IPPROTO_SCTP, SCTP_INITMSG, &init, sizeof init) == 0, "SCTP_INITMSG");
    return sock;
}

static void serve(struct sockaddr_in *address)
{
    struct socket *listener = open_socket();
    must(usrsctp_bind(listener, (struct sockaddr *)address, sizeof *address) == 0, "bind");
    must(usrsctp_listen(listener, 1) == 0, "listen");
    puts("ready");
    fflush(stdout);
    struct socket *sock = usrsctp_accept(listener, NULL, NULL);
    must(sock != NULL, "accept");
    struct sctp_rcvinfo info;
    ssize_t n;
    while ((n = receive(sock, &info)) > 0)
        must(transmit(sock, buffer, n, info.rcv_sid, info.rcv_ppid), "echo");
    must(n == 0, "recv");
    usrsctp_close(sock);
    usrsctp_close(listener);
}

static void call(struct sockaddr_in *address, uint16_t udp, int count)
{
    struct socket *sock = open_socket();
    if (udp != 0) {
        struct sctp_udpencaps encaps = {.sue_port = htons(udp)};
        encaps.sue_address.ss_family = AF_INET;
        must(usrsctp_setsockopt(sock, IPPROTO_SCTP, SCTP_REMOTE_UDP_ENCAPS_PORT, &encaps, sizeof encaps) == 0,
             "SCTP_REMOTE_UDP_ENCAPS_PORT");
    }
    must(usrsctp_connect(sock, (struct sockaddr *)address, sizeof *address) == 0, "connect");
    static char sent[1 << 20];
    for (int i = 0; i < count; i++) {
        size_t length = 1 + (size_t)i * 1500;
        memset(sent, 'a' + i % 26, length);
        must(transmit(sock, sent, length, i % 2, htonl(60)), "send");
        struct sctp_rcvinfo info;
        ssize_t n = receive(sock, &info);
        must(n == (ssize_t)length && memcmp(sent, buffer, length) == 0, "echoed bytes");
        must(info.rcv_sid == i % 2 && info.rcv_ppid == htonl(60), "echoed stream and PPID");
    }
    must(usrsctp_shutdown(sock, SHUT_WR) == 0, "shutdown");
    struct sctp_rcvinfo info;
    must(receive(sock, &info) == 0, "end of association");
    usrsctp_close(sock);
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    must(inet_pton(AF_INET, argv[2], &address.sin_addr) == 1, "address");
    uint16_t udp = atoi(argv[4]);
    usrsctp_init(udp, NULL, NULL);
    usrsctp_sysctl_set_sctp_blackhole(2);
    if (strcmp(argv[1], "server") == 0)
        serve(&address);
    else
        call(&address, udp, argc > 5 ? atoi(argv[5]) : 1);
    for (int i = 0; i < 100 && usrsctp_finish() != 0; i++)
        usleep(20000);
    return 0;
}
