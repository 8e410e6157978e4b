/* N2 on an independent SCTP implementation (libusrsctp, raw IP): reads messages as lines "STREAM HEX" from standard
 * input, sends each with PPID 60, and prints every message it receives as "STREAM PPID HEX". Ends after the number of
 * received messages in its third argument.
 *
 *   usrsctp_gnb ADDRESS PORT ANSWERS */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <usrsctp.h>

static unsigned char buffer[1 << 16];
static char line[1 << 18];

static void must(int ok, const char *what)
{
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static void transmit(struct socket *sock)
{
    unsigned stream = 0;
    int at = 0;
    must(sscanf(line, "%u %n", &stream, &at) == 1, "a line STREAM HEX");
    size_t length = 0;
    unsigned octet;
    while (sscanf(line + at + 2 * length, "%2x", &octet) == 1)
        buffer[length++] = octet;
    struct sctp_sndinfo info = {.snd_sid = stream, .snd_ppid = htonl(60)};
    must(usrsctp_sendv(sock, buffer, length, NULL, 0, &info, sizeof info, SCTP_SENDV_SNDINFO, 0) == (ssize_t)length,
         "send");
}

static void receive(struct socket *sock)
{
    struct sctp_rcvinfo info = {0};
    socklen_t from_length = 0, info_length = sizeof info;
    unsigned info_type = 0;
    int flags = 0;
    ssize_t n = usrsctp_recvv(sock, buffer, sizeof buffer, NULL, &from_length, &info, &info_length, &info_type, &flags);
    must(n > 0 && (flags & MSG_EOR), "receive");
    printf("%u %u ", info.rcv_sid, (unsigned)ntohl(info.rcv_ppid));
    for (ssize_t i = 0; i < n; i++)
        printf("%02x", buffer[i]);
    printf("\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    must(argc == 4, "usage: usrsctp_gnb ADDRESS PORT ANSWERS");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
    must(inet_pton(AF_INET, argv[1], &address.sin_addr) == 1, "address");
    usrsctp_init(0, NULL, NULL);
    /* Do not abort associations of other programs in this namespace. */
    usrsctp_sysctl_set_sctp_blackhole(2);
    struct socket *sock = usrsctp_socket(AF_INET, SOCK_STREAM, IPPROTO_SCTP, NULL, NULL, 0, NULL);
    must(sock != NULL, "socket");
    int on = 1;
    must(usrsctp_setsockopt(sock, IPPROTO_SCTP, SCTP_RECVRCVINFO, &on, sizeof on) == 0, "SCTP_RECVRCVINFO");
    struct sctp_initmsg init = {.sinit_num_ostreams = 2, .sinit_max_instreams = 64};
    must(usrsctp_setsockopt(sock, IPPROTO_SCTP, SCTP_INITMSG, &init, sizeof init) == 0, "SCTP_INITMSG");
    must(usrsctp_connect(sock, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    for (int answers = atoi(argv[3]); answers > 0; answers--) {
        must(fgets(line, sizeof line, stdin) != NULL, "a message to send");
        transmit(sock);
        receive(sock);
    }
    usrsctp_close(sock);
    for (int tries = 0; usrsctp_finish() != 0 && tries < 100; tries++)
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    return 0;
}
