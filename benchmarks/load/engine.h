/* Shared code of the load generators: connections to 127.0.0.1, one epoll loop that keeps a window
 * of requests in flight on each, latencies in microseconds, and one JSON line at the end. A
 * generator includes this file and defines the functions under "A protocol".
 *
 * The first fifth of the time is warm-up and is not counted. With `rate` requests per second the
 * loop sends on a fixed schedule, and a latency begins when its request was due, so that a stall of
 * the server counts for every request that it delayed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { IN_BYTES = 16 << 20, KEY_BYTES = 32, LATENCY_MAX_US = 2000000, PAST = 1 << 16 };
enum { DRAIN_MAX_US = 20000000, PACE_NS = 100000, PACED_WINDOW = 4096 };

struct options {
    int kind, port, queues, connections, window, body_bytes, messages, topics, groups;
    const char *topic, *expression;
    double seconds, rate;
};

struct connection {
    int fd, number, in_flight, queue, passes, is_waiting;
    long next_offset;
    long *offsets; /* of a group that follows a topic, by queue */
    uint32_t opaque;
    char *in, *out;
    size_t in_length, out_length, out_sent;
    uint64_t *started_us; /* by opaque modulo PAST */
    char *is_end;         /* by opaque modulo PAST: whether the request ends a transaction */
    uint16_t *queue_of;   /* by opaque modulo PAST: the queue that the request pulls from */
};

struct totals {
    long answers, messages, looked_at, errors;
};

static uint32_t latency_us[LATENCY_MAX_US];
static uint64_t due_us; /* when the next request was due; 0 without a rate */
static unsigned long next_key;

/* ---- A protocol: functions that the including file defines. ---- */

/* Return the maximum size of one request of a connection. */
static size_t request_bytes(const struct options *o);
/* Return the number of connections, and the window of one of them. */
static int connection_count(const struct options *o);
static int window_of(const struct options *o, const struct connection *c);
/* Do the handshake that the server requires, blocking, before the load. */
static void greet(const struct options *o, struct connection *c);
/* Append one request to the connection's output with note_request. */
static void add_request(const struct options *o, struct connection *c);
/* Process complete answers in the connection's input with note_answer; return their size. */
static size_t take_answers(const struct options *o, struct connection *c, struct totals *t);
/* Return whether all required answers have arrived after the end of the load. */
static int is_drained(const struct options *o, const struct totals *t);

/* ---- */

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

static __attribute__((noreturn)) void die(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, errno ? strerror(errno) : "failed");
    exit(1);
}

static inline void put_u32(char *at, uint32_t value) {
    value = htonl(value);
    memcpy(at, &value, 4);
}

static inline uint32_t get_u32(const char *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return ntohl(value);
}

/* Write a unique key of 32 hex digits. */
static inline void next_unique_key(char *key) {
    static const char digits[] = "0123456789ABCDEF";
    static char prefix[13];
    if (!prefix[0]) snprintf(prefix, sizeof prefix, "7F000001%04X", (unsigned)getpid() & 0xFFFF);
    memcpy(key, prefix, 12);
    unsigned long number = ++next_key;
    for (int i = KEY_BYTES - 1; i >= 12; i--, number >>= 4) key[i] = digits[number & 15];
}

/* Record that a request of this size was written to the output. */
static inline void note_request(struct connection *c, size_t bytes, uint64_t started_us) {
    c->out_length += bytes;
    c->started_us[c->opaque++ % PAST] = started_us;
}

/* Record that a request was answered. */
static inline void note_answer(struct connection *c, struct totals *t, uint32_t opaque) {
    uint64_t took = now_us() - c->started_us[opaque % PAST];
    latency_us[took < LATENCY_MAX_US ? took : LATENCY_MAX_US - 1]++;
    t->answers++;
    c->in_flight--;
}

static void write_out(struct connection *c, int poll_fd) {
    while (c->out_sent < c->out_length) {
        ssize_t n = write(c->fd, c->out + c->out_sent, c->out_length - c->out_sent);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN) die("write");
        if (n <= 0) break;
        c->out_sent += n;
    }
    if (c->out_sent) memmove(c->out, c->out + c->out_sent, c->out_length - c->out_sent);
    c->out_length -= c->out_sent;
    c->out_sent = 0;
    int waits = c->out_length > 0;
    if (waits != c->is_waiting) {
        struct epoll_event event = {.events = EPOLLIN | (waits ? EPOLLOUT : 0), .data.ptr = c};
        epoll_ctl(poll_fd, EPOLL_CTL_MOD, c->fd, &event);
        c->is_waiting = waits;
    }
}

/* Blocking writes and reads for greet. */
static __attribute__((unused)) void write_whole(struct connection *c, const char *at, size_t length) {
    while (length) {
        ssize_t n = write(c->fd, at, length);
        if (n <= 0) die("write");
        at += n;
        length -= n;
    }
}

static struct connection *connect_all(const struct options *o, int count) {
    struct connection *all = calloc(count, sizeof *all);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(o->port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    for (int i = 0; i < count; i++) {
        struct connection *c = all + i;
        int one = 1;
        c->number = i;
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&to, sizeof to)) die("connect");
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        c->queue = i % o->queues;
        c->in = malloc(IN_BYTES);
        c->out = malloc(request_bytes(o) * (window_of(o, c) + 1));
        c->started_us = calloc(PAST, sizeof *c->started_us);
        c->is_end = calloc(PAST, 1);
        c->queue_of = calloc(PAST, sizeof *c->queue_of);
        c->offsets = calloc(o->queues, sizeof *c->offsets);
        if (!c->in || !c->out || !c->started_us || !c->is_end || !c->queue_of) die("memory");
        greet(o, c);
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
    }
    return all;
}

static long percentile_us(double share, long answers) {
    long seen = 0;
    for (long us = 0; us < LATENCY_MAX_US; us++)
        if ((seen += latency_us[us]) >= share * answers) return us;
    return LATENCY_MAX_US;
}

static void fill_window(const struct options *o, struct connection *c, int poll_fd) {
    int window = window_of(o, c);
    if (c->in_flight >= window && !c->out_length) return;
    for (; c->in_flight < window; c->in_flight++) add_request(o, c);
    write_out(c, poll_fd);
}

/* Send the requests that are due, on the connections in turn. */
static void send_due(const struct options *o, struct connection *all, uint64_t begin_us,
                     int poll_fd) {
    static unsigned long sent;
    uint64_t elapsed_us = now_us() - begin_us;
    unsigned long due = elapsed_us * o->rate / 1e6;
    for (; sent < due; sent++) {
        struct connection *c = all + sent % o->connections;
        if (c->in_flight >= o->window) break; /* the server is far behind; latency keeps counting */
        due_us = begin_us + sent * 1e6 / o->rate;
        c->in_flight++;
        add_request(o, c);
        if (sent + 1 == due || due - sent <= (unsigned)o->connections) write_out(c, poll_fd);
    }
}

static int turn(const struct options *o, int poll_fd, struct totals *t, int is_sending) {
    static struct epoll_event ready[1024];
    struct timespec wait = {.tv_nsec = o->rate ? PACE_NS : 50000000};
    int count = epoll_pwait2(poll_fd, ready, 1024, &wait, NULL);
    for (int i = 0; i < count; i++) {
        struct connection *c = ready[i].data.ptr;
        if (ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
            ssize_t n = read(c->fd, c->in + c->in_length, IN_BYTES - c->in_length);
            if (n == 0) die("closed by the broker");
            if (n < 0 && errno != EAGAIN && errno != EINTR) die("read");
            if (n > 0) {
                c->in_length += n;
                size_t done = take_answers(o, c, t);
                memmove(c->in, c->in + done, c->in_length - done);
                c->in_length -= done;
                if (c->in_length == IN_BYTES) die("answer too large");
            }
        }
        if (is_sending && !o->rate) fill_window(o, c, poll_fd);
        else if (c->out_length) write_out(c, poll_fd);
    }
    return count;
}

static void print_line(const struct options *o, const char *kind, double seconds,
                       const struct totals *total, const struct totals *warm) {
    long answers = total->answers - warm->answers;
    (void)o;
    printf("{\"kind\":\"%s\",\"messages_per_s\":%.0f,\"looked_at_per_s\":%.0f,\"p50_us\":%ld,"
           "\"p99_us\":%ld,\"p999_us\":%ld,\"max_us\":%ld,\"errors\":%ld,\"stored\":%ld,"
           "\"delivered\":%ld}\n",
           kind, (total->messages - warm->messages) / seconds,
           (total->looked_at - warm->looked_at) / seconds,
           percentile_us(0.5, answers), percentile_us(0.99, answers),
           percentile_us(0.999, answers), percentile_us(1, answers), total->errors,
           total->messages, total->looked_at);
}

/* With `is_whole`, count from the first request until the last answer. */
static void run(const struct options *o, const char *kind, int is_whole) {
    int count = connection_count(o), poll_fd = epoll_create1(0);
    struct connection *all = connect_all(o, count);
    struct totals total = {0}, warm = {0};
    for (int i = 0; i < count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = all + i};
        if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, all[i].fd, &event)) die("epoll");
    }
    uint64_t begin = now_us(), counted_from = begin + (is_whole ? 0 : o->seconds * 2e5);
    uint64_t end = begin + o->seconds * 1e6, measured_from = is_whole ? begin : 0;
    for (int i = 0; i < count && !o->rate; i++) fill_window(o, all + i, poll_fd);
    while (now_us() < end) {
        if (!measured_from && now_us() >= counted_from) {
            measured_from = now_us();
            warm = total;
            memset(latency_us, 0, sizeof latency_us);
        }
        if (o->rate) send_due(o, all, begin, poll_fd);
        turn(o, poll_fd, &total, 1);
    }
    if (is_whole)
        while (!is_drained(o, &total) && now_us() < end + DRAIN_MAX_US) turn(o, poll_fd, &total, 1);
    if (!measured_from) measured_from = end; /* a stall for the whole time */
    print_line(o, kind, (now_us() - measured_from) / 1e6 + 1e-6, &total, &warm);
}
