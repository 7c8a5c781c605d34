/* A load generator for any RocketMQ broker that leaves the processors to the broker.
 *
 *   load send   PORT TOPIC QUEUES CONNECTIONS WINDOW BODY_BYTES SECONDS [TOPICS]
 *   load orders PORT TOPIC QUEUES CONNECTIONS WINDOW BODY_BYTES SECONDS
 *   load commit PORT TOPIC QUEUES CONNECTIONS WINDOW BODY_BYTES SECONDS
 *   load batch  PORT TOPIC QUEUES CONNECTIONS WINDOW BODY_BYTES SECONDS MESSAGES
 *   load pull   PORT TOPIC QUEUES CONNECTIONS MESSAGES SECONDS [EXPRESSION]
 *
 * All but pull keep WINDOW requests in flight on each connection (codes 310 and 320, JSON headers);
 * every message has a key of its own. With TOPICS, send goes round all queues of TOPIC0, TOPIC1
 * ..., far from one to the next. The messages of orders have three more properties: amount (0 to
 * 9999999), region (eu, us, asia) and kind, evenly spread. commit sends half messages and commits
 * each one once it is acknowledged; a message counts, with its time, when its commit is. pull reads
 * each queue from offset 0 to its end, again and again, MESSAGES a request, by the SQL92 EXPRESSION
 * if there is one; in place of "###" stands 000 when a queue is read first, 001 the next time ...
 * Only 127.0.0.1 is loaded. The first fifth of the time is warm-up and not counted. One JSON line
 * is printed:
 *
 *   {"kind","messages_per_s","looked_at_per_s","p50_us","p99_us","p999_us","max_us","errors",
 *    "stored"}
 *
 * looked_at_per_s are the queue offsets that pulls passed, messages filtered out included. stored
 * counts every acknowledged message, the warm-up's included, so that a caller can tell when the
 * broker has dispatched all of them.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { IN_BYTES = 16 << 20, HEADER_BYTES = 1024, KEY_BYTES = 32, LATENCY_MAX_US = 2000000 };
enum { PREPARED = 4, COMMITTED = 8 }; /* sysFlag and commitOrRollback of transactions */
enum kind { SEND, ORDERS, COMMIT, BATCH, PULL, KINDS };

static const char *const kind_names[KINDS] = {"send", "orders", "commit", "batch", "pull"};

struct options {
    enum kind kind;
    int port, queues, connections, window, body_bytes, messages, topics;
    const char *topic, *expression;
    double seconds;
};

struct connection {
    int fd, in_flight, queue, passes;
    long next_offset;
    uint32_t opaque;
    char *in, *out;
    size_t in_length, out_length, out_sent;
    uint64_t *started_us; /* by opaque modulo 64 Ki */
    char *is_end;         /* likewise: whether the request ends a transaction */
};

struct totals {
    long answers, messages, looked_at, errors;
};

static uint32_t latency_us[LATENCY_MAX_US];
static unsigned long next_key;
static unsigned long next_place;
static uint64_t epoch_ms;

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

static void die(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, errno ? strerror(errno) : "failed");
    exit(1);
}

static void put_u32(char *at, uint32_t value) {
    value = htonl(value);
    memcpy(at, &value, 4);
}

static uint32_t get_u32(const char *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return ntohl(value);
}

/* The number behind "name": in a header, quoted or not; -1 when it is not there. */
static long header_number(const char *header, size_t length, const char *name) {
    const char *found = memmem(header, length, name, strlen(name));
    if (!found) return -1;
    found += strlen(name);
    while (*found == '"' || *found == ':' || *found == ' ') found++;
    return atol(found);
}

static void next_unique_key(char *key) { /* 32 hex digits, never the same twice */
    char text[KEY_BYTES + 1];
    snprintf(text, sizeof text, "7F000001%04X%020lX", (unsigned)getpid() & 0xFFFF, ++next_key);
    memcpy(key, text, KEY_BYTES);
}

/* One entry of a batch body: its lengths, body and "UNIQ_KEY\1<key>". */
static size_t put_batch_entry(char *at, int body_bytes) {
    size_t properties = 9 + KEY_BYTES, total = 22 + body_bytes + properties;
    memset(at, 0, 20);
    put_u32(at, total);
    put_u32(at + 16, body_bytes);
    memset(at + 20, 'x', body_bytes);
    char *tail = at + 20 + body_bytes;
    tail[0] = 0;
    tail[1] = (char)properties;
    memcpy(tail + 2, "UNIQ_KEY\1", 9);
    next_unique_key(tail + 11);
    return total;
}

/* The properties of one message behind its key, as they stand in a JSON header. */
static void put_properties(char *at, size_t room, enum kind kind, const char *key) {
    static const char *const regions[] = {"eu", "us", "asia"}, *const kinds[] = {"retail", "trade"};
    uint64_t mixed = next_key * 11400714819323198485ull >> 20;
    int used = snprintf(at, room, "UNIQ_KEY\\u0001%s\\u0002WAIT\\u0001true", key);
    if (kind == ORDERS)
        snprintf(at + used, room - used,
            "\\u0002amount\\u0001%u\\u0002region\\u0001%s\\u0002kind\\u0001%s",
            (unsigned)(mixed % 10000000), regions[mixed / 10000000 % 3],
            kinds[mixed / 30000000 % 2]);
    else if (kind == COMMIT)
        snprintf(at + used, room - used, "\\u0002TRAN_MSG\\u0001true\\u0002PGROUP\\u0001load");
}

static int put_send_header(char *at, const struct options *o, uint32_t opaque, int queue) {
    char key[KEY_BYTES + 1] = {0}, properties[256] = "WAIT\\u0001true", number[16] = "";
    int batch = o->kind == BATCH;
    if (o->topics) {
        unsigned long places = (unsigned long)o->topics * o->queues;
        unsigned long place = next_place++ * 7919 % places;
        snprintf(number, sizeof number, "%u", (unsigned)(place / o->queues));
        queue = place % o->queues;
    }
    if (!batch) {
        next_unique_key(key);
        put_properties(properties, sizeof properties, o->kind, key);
    }
    return snprintf(at, HEADER_BYTES,
        "{\"code\":%d,\"extFields\":{\"a\":\"load\",\"b\":\"%s%s\",\"c\":\"TBW102\",\"d\":\"4\","
        "\"e\":\"%d\",\"f\":\"%d\",\"g\":\"%lu\",\"h\":\"0\",\"i\":\"%s\",\"j\":\"0\","
        "\"k\":\"false\",\"m\":\"%s\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%u,"
        "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":407}",
        batch ? 320 : 310, o->topic, number, queue, o->kind == COMMIT ? PREPARED : 0,
        (unsigned long)epoch_ms, properties,
        batch ? "true" : "false", opaque);
}

static int put_pull_header(char *at, const struct options *o, struct connection *c) {
    char expression[HEADER_BYTES / 2] = "*", pass[16];
    if (o->expression) snprintf(expression, sizeof expression, "%s", o->expression);
    char *numbered = strstr(expression, "###");
    snprintf(pass, sizeof pass, "%03d", c->passes % 1000);
    if (numbered) memcpy(numbered, pass, 3);
    return snprintf(at, HEADER_BYTES,
        "{\"code\":11,\"extFields\":{\"commitOffset\":\"0\",\"consumerGroup\":\"load\","
        "\"expressionType\":\"%s\",\"maxMsgNums\":\"%d\",\"queueId\":\"%d\","
        "\"queueOffset\":\"%ld\",\"subVersion\":\"0\",\"subscription\":\"%s\","
        "\"suspendTimeoutMillis\":\"0\",\"sysFlag\":\"4\",\"topic\":\"%s\"},\"flag\":0,"
        "\"language\":\"JAVA\",\"opaque\":%u,\"serializeTypeCurrentRPC\":\"JSON\","
        "\"version\":407}",
        o->expression ? "SQL92" : "TAG", o->messages, c->queue, c->next_offset,
        expression, o->topic, c->opaque);
}

/* Put the lengths before a header and body that stand in the connection's output. */
static void put_frame(struct connection *c, size_t header_bytes, size_t body_bytes,
                      uint64_t started_us, int is_end) {
    char *frame = c->out + c->out_length;
    put_u32(frame, 4 + header_bytes + body_bytes);
    put_u32(frame + 4, header_bytes);
    c->out_length += 8 + header_bytes + body_bytes;
    c->started_us[c->opaque & 0xFFFF] = started_us;
    c->is_end[c->opaque++ & 0xFFFF] = is_end;
}

/* Append one request to the connection's output. */
static void add_request(const struct options *o, struct connection *c) {
    char *frame = c->out + c->out_length;
    int queue = (c->queue + c->opaque) % o->queues;
    int header = o->kind == PULL ? put_pull_header(frame + 8, o, c)
                                 : put_send_header(frame + 8, o, c->opaque, queue);
    char *body = frame + 8 + header;
    size_t body_bytes = 0;
    if (o->kind != BATCH && o->kind != PULL) {
        memset(body, 'x', o->body_bytes);
        body_bytes = o->body_bytes;
    } else if (o->kind == BATCH) {
        for (int i = 0; i < o->messages; i++)
            body_bytes += put_batch_entry(body + body_bytes, o->body_bytes);
    }
    put_frame(c, header, body_bytes, now_us(), 0);
    c->in_flight++;
}

/* The request that commits the half message of an acknowledged send. */
static void add_commit(struct connection *c, const char *answer, size_t length,
                       uint64_t started_us) {
    const char *id = memmem(answer, length, "\"msgId\":\"", 9);
    char place[17] = "";
    if (!id || id + 41 > answer + length) die("answer without msgId");
    memcpy(place, id + 25, 16); /* behind the broker's host */
    int header = snprintf(c->out + c->out_length + 8, HEADER_BYTES,
        "{\"code\":37,\"extFields\":{\"commitLogOffset\":\"%llu\",\"commitOrRollback\":\"%d\","
        "\"fromTransactionCheck\":\"false\",\"msgId\":\"%.32s\",\"producerGroup\":\"load\","
        "\"tranStateTableOffset\":\"%ld\",\"transactionId\":\"%.32s\"},\"flag\":0,"
        "\"language\":\"JAVA\",\"opaque\":%u,\"serializeTypeCurrentRPC\":\"JSON\","
        "\"version\":407}",
        strtoull(place, NULL, 16), COMMITTED, id + 9,
        header_number(answer, length, "\"queueOffset\""), id + 9, c->opaque);
    put_frame(c, header, 0, started_us, 1);
}

static void write_out(struct connection *c) {
    while (c->out_sent < c->out_length) {
        ssize_t n = write(c->fd, c->out + c->out_sent, c->out_length - c->out_sent);
        if (n < 0 && errno != EAGAIN) die("write");
        if (n <= 0) break;
        c->out_sent += n;
    }
    memmove(c->out, c->out + c->out_sent, c->out_length - c->out_sent);
    c->out_length -= c->out_sent;
    c->out_sent = 0;
}

static void take_pull_answer(struct connection *c, struct totals *t, long code,
                             const char *body, const char *end, long next_offset) {
    if (code == 0 || code == 20) { /* 20: nothing matched so far */
        for (; code == 0 && body < end; body += get_u32(body)) t->messages++;
        t->looked_at += next_offset - c->next_offset;
        c->next_offset = next_offset;
    } else if (code == 19 || (code == 21 && next_offset <= c->next_offset)) {
        c->next_offset = 0; /* the end: once more; 21 with a later offset: messages are gone */
        c->passes++;
    } else {
        t->errors++;
    }
}

static void take_answers(const struct options *o, struct connection *c, struct totals *t) {
    size_t at = 0;
    while (c->in_length - at >= 8) {
        uint32_t length = get_u32(c->in + at);
        if (length + 4 > IN_BYTES) die("answer too large");
        if (c->in_length - at < length + 4) break;
        const char *header = c->in + at + 8, *end = c->in + at + 4 + length;
        uint32_t header_bytes = get_u32(c->in + at + 4) & 0xFFFFFF;
        long code = header_number(header, header_bytes, "\"code\"");
        long opaque = header_number(header, header_bytes, "\"opaque\"");
        uint64_t started_us = c->started_us[opaque & 0xFFFF];
        if (o->kind == COMMIT && code == 0 && !c->is_end[opaque & 0xFFFF]) {
            add_commit(c, header, header_bytes, started_us);
            at += 4 + length;
            continue;
        }
        uint64_t took = now_us() - started_us;
        latency_us[took < LATENCY_MAX_US ? took : LATENCY_MAX_US - 1]++;
        t->answers++;
        c->in_flight--;
        if (o->kind == PULL) {
            take_pull_answer(c, t, code, header + header_bytes, end,
                             header_number(header, header_bytes, "\"nextBeginOffset\""));
        } else if (code == 0) {
            t->messages += o->kind == BATCH ? o->messages : 1;
        } else {
            t->errors++;
        }
        at += 4 + length;
    }
    memmove(c->in, c->in + at, c->in_length - at);
    c->in_length -= at;
}

static struct connection *connect_all(const struct options *o) {
    struct connection *all = calloc(o->connections, sizeof *all);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(o->port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    size_t request = HEADER_BYTES + (size_t)o->body_bytes * o->messages + 128u * o->messages;
    for (int i = 0; i < o->connections; i++) {
        struct connection *c = all + i;
        int one = 1;
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(c->fd, (struct sockaddr *)&to, sizeof to)) die("connect");
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        c->queue = i % o->queues;
        c->in = malloc(IN_BYTES);
        c->out = malloc(request * (o->window + 1));
        c->started_us = calloc(1 << 16, sizeof *c->started_us);
        c->is_end = calloc(1 << 16, 1);
    }
    return all;
}

static long percentile_us(double share, long answers) {
    long seen = 0;
    for (long us = 0; us < LATENCY_MAX_US; us++)
        if ((seen += latency_us[us]) >= share * answers) return us;
    return LATENCY_MAX_US;
}

static void turn(const struct options *o, struct connection *all, struct pollfd *polled,
                 struct totals *t) {
    for (int i = 0; i < o->connections; i++) {
        while (all[i].in_flight < o->window) add_request(o, all + i);
        write_out(all + i);
        polled[i] = (struct pollfd){.fd = all[i].fd,
                                    .events = POLLIN | (all[i].out_length ? POLLOUT : 0)};
    }
    poll(polled, o->connections, 50);
    for (int i = 0; i < o->connections; i++) {
        struct connection *c = all + i;
        if (!(polled[i].revents & (POLLIN | POLLHUP))) continue;
        ssize_t n = read(c->fd, c->in + c->in_length, IN_BYTES - c->in_length);
        if (n == 0) die("closed by the broker");
        if (n < 0) continue;
        c->in_length += n;
        take_answers(o, c, t);
    }
}

static void run(const struct options *o) {
    struct connection *all = connect_all(o);
    struct pollfd *polled = calloc(o->connections, sizeof *polled);
    struct totals total = {0}, warm = {0};
    uint64_t begin = now_us(), counted_from = begin + o->seconds * 2e5;
    uint64_t end = begin + o->seconds * 1e6, measured_from = 0;
    while (now_us() < end) {
        if (!measured_from && now_us() >= counted_from) {
            measured_from = now_us();
            warm = total;
            memset(latency_us, 0, sizeof latency_us);
        }
        turn(o, all, polled, &total);
    }
    double seconds = (now_us() - measured_from) / 1e6;
    long answers = total.answers - warm.answers;
    printf("{\"kind\":\"%s\",\"messages_per_s\":%.0f,\"looked_at_per_s\":%.0f,\"p50_us\":%ld,"
           "\"p99_us\":%ld,\"p999_us\":%ld,\"max_us\":%ld,\"errors\":%ld,\"stored\":%ld}\n",
           kind_names[o->kind], (total.messages - warm.messages) / seconds,
           (total.looked_at - warm.looked_at) / seconds,
           percentile_us(0.5, answers), percentile_us(0.99, answers),
           percentile_us(0.999, answers), percentile_us(1, answers), total.errors,
           total.messages);
}

int main(int count, char **words) {
    struct options o = {.window = 1, .messages = 1};
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    epoch_ms = wall.tv_sec * 1000ull + wall.tv_nsec / 1000000;
    if (count < 8) {
        fprintf(stderr, "usage: see the head of load.c\n");
        return 2;
    }
    while (o.kind < KINDS && strcmp(words[1], kind_names[o.kind])) o.kind++;
    o.port = atoi(words[2]);
    o.topic = words[3];
    o.queues = atoi(words[4]);
    o.connections = atoi(words[5]);
    if (o.kind == PULL) {
        o.messages = atoi(words[6]);
        o.seconds = atof(words[7]);
        if (count > 8) o.expression = words[8];
    } else if (count >= (o.kind == BATCH ? 10 : 9)) {
        o.window = atoi(words[6]);
        o.body_bytes = atoi(words[7]);
        o.seconds = atof(words[8]);
        if (o.kind == BATCH) o.messages = atoi(words[9]);
        if (o.kind == SEND && count > 9) o.topics = atoi(words[9]);
    }
    if (o.kind == KINDS || o.queues < 1 || o.connections < 1 || o.window < 1 || o.messages < 1 || o.seconds <= 0) {
        fprintf(stderr, "usage: see the head of load.c\n");
        return 2;
    }
    run(&o);
    return 0;
}
