/* The load generator for NATS JetStream: published messages, each acknowledged by the stream.
 *
 *   nats PORT SUBJECT CONNECTIONS WINDOW BODY_BYTES SECONDS
 *
 * Each connection keeps WINDOW messages in flight. A body begins with a unique key of 32 digits,
 * which the messages of other brokers have outside the body, so it is longer than BODY_BYTES by
 * that. The output is that of load.c.
 *
 * A message: "PUB SUBJECT INBOX.NUMBER BYTES\r\n", the body, "\r\n". The stream's acknowledgement:
 * "MSG INBOX.NUMBER 1 BYTES\r\n", {"stream":...,"seq":...} or {"error":...}, "\r\n".
 */
#include "engine.h"

enum { LINE_BYTES = 256, INFO_BYTES = 8192 };

static void read_line(struct connection *c, char *at, size_t room) {
    size_t length = 0;
    while (length + 1 < room) {
        if (read(c->fd, at + length, 1) != 1) die("closed by the server");
        if (at[length++] == '\n') break;
    }
    at[length] = 0;
}

static void greet(const struct options *o, struct connection *c) {
    char line[INFO_BYTES];
    (void)o;
    read_line(c, line, sizeof line); /* INFO {...} */
    int length = snprintf(line, sizeof line,
        "CONNECT {\"verbose\":false,\"pedantic\":false,\"lang\":\"c\",\"version\":\"1\"}\r\n"
        "SUB _INBOX.%d.%d.* 1\r\nPING\r\n", (int)getpid(), c->number);
    write_whole(c, line, length);
    do read_line(c, line, sizeof line);
    while (strncmp(line, "PONG", 4) && strncmp(line, "-ERR", 4));
    if (line[0] == '-') die(line);
}

static void add_request(const struct options *o, struct connection *c) {
    char *frame = c->out + c->out_length;
    int bytes = KEY_BYTES + o->body_bytes;
    char *at = frame + snprintf(frame, LINE_BYTES, "PUB %s _INBOX.%d.%d.%u %d\r\n", o->topic,
                                (int)getpid(), c->number, c->opaque, bytes);
    next_unique_key(at);
    memset(at + KEY_BYTES, 'x', o->body_bytes);
    memcpy(at + bytes, "\r\n", 2);
    note_request(c, at + bytes + 2 - frame, now_us());
}

/* Return the number after the last `mark` before `end`. */
static unsigned long number_after(const char *at, const char *end, char mark) {
    const char *found = memrchr(at, mark, end - at);
    return found ? strtoul(found + 1, NULL, 10) : 0;
}

static size_t take_answers(const struct options *o, struct connection *c, struct totals *t) {
    size_t at = 0;
    (void)o;
    for (;;) {
        const char *line = c->in + at, *stop = memchr(line, '\n', c->in_length - at);
        if (!stop) return at;
        size_t line_bytes = stop + 1 - line;
        if (!strncmp(line, "MSG ", 4)) {
            size_t bytes = number_after(line, stop, ' ');
            if (c->in_length - at < line_bytes + bytes + 2) return at;
            const char *subject_end = memchr(line + 4, ' ', stop - line - 4);
            note_answer(c, t, number_after(line, subject_end, '.'));
            if (memmem(stop + 1, bytes, "\"error\"", 7)) t->errors++;
            else t->messages++;
            at += line_bytes + bytes + 2;
            continue;
        }
        if (!strncmp(line, "PING", 4)) {
            memcpy(c->out + c->out_length, "PONG\r\n", 6);
            c->out_length += 6;
        } else if (line[0] == '-') {
            die("an error of the server");
        }
        at += line_bytes;
    }
}

static size_t request_bytes(const struct options *o) {
    return LINE_BYTES + KEY_BYTES + o->body_bytes;
}

static int connection_count(const struct options *o) {
    return o->connections;
}

static int window_of(const struct options *o, const struct connection *c) {
    (void)c;
    return o->window;
}

static int is_drained(const struct options *o, const struct totals *t) {
    (void)o, (void)t;
    return 1;
}

int main(int count, char **words) {
    struct options o = {.queues = 1, .messages = 1};
    if (count == 7) {
        o.port = atoi(words[1]);
        o.topic = words[2];
        o.connections = atoi(words[3]);
        o.window = atoi(words[4]);
        o.body_bytes = atoi(words[5]);
        o.seconds = atof(words[6]);
    }
    if (o.connections < 1 || o.window < 1 || o.seconds <= 0 || strlen(o.topic) > LINE_BYTES / 2) {
        fprintf(stderr, "usage: see the head of nats.c\n");
        return 2;
    }
    run(&o, "nats", 0);
    return 0;
}
