/* A load generator for any RocketMQ broker that uses little processor time itself.
 *
 *   load send   PORT TOPIC QUEUES CONNECTIONS WINDOW BODY_BYTES SECONDS [TOPICS] [rate=N]
 *   load orders PORT TOPIC QUEUES CONNECTIONS WINDOW BODY_BYTES SECONDS
 *   load commit PORT TOPIC QUEUES CONNECTIONS WINDOW BODY_BYTES SECONDS
 *   load batch  PORT TOPIC QUEUES CONNECTIONS WINDOW BODY_BYTES SECONDS MESSAGES
 *   load fan    PORT TOPIC QUEUES CONNECTIONS WINDOW BODY_BYTES SECONDS GROUPS
 *   load echo   PORT TOPIC QUEUES CONNECTIONS WINDOW BODY_BYTES SECONDS
 *   load pull   PORT TOPIC QUEUES CONNECTIONS MESSAGES SECONDS [EXPRESSION]
 *
 * A last argument sign=KEY:SECRET signs every request as that account.
 *
 * All but pull keep WINDOW requests in flight on each connection (codes 310 and 320, JSON headers).
 * Every message has a unique key. With TOPICS, send rotates over all queues of TOPIC0, TOPIC1 ...,
 * with a large distance between consecutive ones; with rate=N it sends N messages per second. The
 * messages of orders have three more properties: amount (0 to 9999999), region (eu, us, asia) and
 * kind, uniformly distributed. commit sends half messages and commits each one once it is
 * acknowledged; the latency of a message ends when its commit is acknowledged. fan sends to an
 * empty topic while GROUPS groups follow it, each on its own connection with one waiting pull per
 * queue; messages_per_s counts until every group has every message. echo sends the requests of send
 * to a server that returns what it receives. pull reads each queue from offset 0 to its end
 * repeatedly, MESSAGES per request, with the SQL92 EXPRESSION if there is one; "###" in it is
 * replaced by 000 in the first pass over a queue, 001 in the next one, and so on. One JSON line is
 * printed:
 *
 *   {"kind","messages_per_s","looked_at_per_s","p50_us","p99_us","p999_us","max_us","errors",
 *    "stored","delivered"}
 *
 * looked_at_per_s counts the queue offsets that pulls passed, including filtered messages. stored
 * counts every acknowledged message, including the warm-up's, so that a caller can determine when
 * the broker has dispatched all of them.
 */
#include "engine.h"
#include "signing.h"

enum { HEADER_BYTES = 1024 };
enum { PREPARED = 4, COMMITTED = 8 }; /* sysFlag and commitOrRollback of transactions */
enum kind { SEND, ORDERS, COMMIT, BATCH, FAN, ECHO, PULL, KINDS };
enum { FAN_MESSAGES = 32 };

static const char *const kind_names[KINDS] = {"send", "orders", "commit", "batch", "fan", "echo",
                                              "pull"};
static unsigned long next_place;
static uint64_t epoch_ms;

static int is_follower(const struct options *o, const struct connection *c) {
    return o->kind == FAN && c->number >= o->connections;
}

/* Return the number after "name": in a header, quoted or not; -1 if it is missing. */
static long header_number(const char *header, size_t length, const char *name) {
    const char *found = memmem(header, length, name, strlen(name));
    if (!found) return -1;
    found += strlen(name);
    while (*found == '"' || *found == ':' || *found == ' ') found++;
    return atol(found);
}

/* Write one entry of a batch body: its lengths, body and "UNIQ_KEY\1<key>". */
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

/* Write the key and the other properties of one message, encoded for a JSON header. */
static void put_properties(char *at, size_t room, int kind, const char *key) {
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

static int put_pull_header(char *at, const struct options *o, struct connection *c, int queue,
                           long offset) {
    char expression[HEADER_BYTES / 2] = "*", pass[16];
    if (o->expression) snprintf(expression, sizeof expression, "%s", o->expression);
    char *numbered = strstr(expression, "###");
    snprintf(pass, sizeof pass, "%03d", c->passes % 1000);
    if (numbered) memcpy(numbered, pass, 3);
    return snprintf(at, HEADER_BYTES,
        "{\"code\":11,\"extFields\":{\"commitOffset\":\"0\",\"consumerGroup\":\"load%d\","
        "\"expressionType\":\"%s\",\"maxMsgNums\":\"%d\",\"queueId\":\"%d\","
        "\"queueOffset\":\"%ld\",\"subVersion\":\"0\",\"subscription\":\"%s\","
        "\"suspendTimeoutMillis\":\"%d\",\"sysFlag\":\"%d\",\"topic\":\"%s\"},\"flag\":0,"
        "\"language\":\"JAVA\",\"opaque\":%u,\"serializeTypeCurrentRPC\":\"JSON\","
        "\"version\":407}",
        c->number, o->expression ? "SQL92" : "TAG", o->messages, queue, offset, expression,
        o->kind == FAN ? 1000 : 0, o->kind == FAN ? 6 : 4, o->topic, c->opaque);
}

/* Write the lengths before a header and body that are already in the connection's output. */
static void put_frame(struct connection *c, size_t header_bytes, size_t body_bytes,
                      uint64_t started_us, int is_end) {
    char *frame = c->out + c->out_length;
    if (access_key) header_bytes += sign_request(frame + 8, header_bytes, body_bytes);
    put_u32(frame, 4 + header_bytes + body_bytes);
    put_u32(frame + 4, header_bytes);
    c->is_end[c->opaque % PAST] = is_end;
    note_request(c, 8 + header_bytes + body_bytes, started_us);
}

static void add_pull(const struct options *o, struct connection *c, int queue, long offset) {
    c->queue_of[c->opaque % PAST] = queue;
    int header = put_pull_header(c->out + c->out_length + 8, o, c, queue, offset);
    put_frame(c, header, 0, now_us(), 0);
}

static void add_request(const struct options *o, struct connection *c) {
    if (is_follower(o, c)) { /* only at the start; later pulls are sent by follow() */
        add_pull(o, c, c->opaque % o->queues, 0);
        return;
    }
    if (o->kind == PULL) {
        add_pull(o, c, c->queue, c->next_offset);
        return;
    }
    char *frame = c->out + c->out_length;
    int header = put_send_header(frame + 8, o, c->opaque, (c->queue + c->opaque) % o->queues);
    char *body = frame + 8 + header;
    size_t body_bytes = o->body_bytes;
    if (o->kind == BATCH) {
        body_bytes = 0;
        for (int i = 0; i < o->messages; i++)
            body_bytes += put_batch_entry(body + body_bytes, o->body_bytes);
    } else {
        memset(body, 'x', body_bytes);
    }
    put_frame(c, header, body_bytes, o->rate ? due_us : now_us(), 0);
}

/* Add the request that commits the half message of an acknowledged send. */
static void add_commit(struct connection *c, const char *answer, size_t length,
                       uint64_t started_us) {
    const char *id = memmem(answer, length, "\"msgId\":\"", 9);
    char place[17] = "";
    if (!id || id + 41 > answer + length) die("answer without msgId");
    memcpy(place, id + 25, 16); /* after the broker's host */
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

static void take_pull_answer(struct connection *c, struct totals *t, long code,
                             const char *body, const char *end, long next_offset) {
    if (code == 0 || code == 20) { /* 20: nothing matched so far */
        for (; code == 0 && body < end; body += get_u32(body)) t->messages++;
        t->looked_at += next_offset - c->next_offset;
        c->next_offset = next_offset;
    } else if (code == 19 || (code == 21 && next_offset <= c->next_offset)) {
        c->next_offset = 0; /* the end: again; 21 with a later offset: messages are gone */
        c->passes++;
    } else {
        t->errors++;
    }
}

/* Process the answer to a waiting pull of a group, and send the next pull. */
static void follow(const struct options *o, struct connection *c, struct totals *t, long code,
                   uint32_t opaque, long next_offset) {
    int queue = c->queue_of[opaque % PAST];
    if (code == 0) {
        t->looked_at += next_offset - c->offsets[queue];
        c->offsets[queue] = next_offset;
    } else if (code != 19) { /* 19: no message within a second */
        t->errors++;
    }
    add_pull(o, c, queue, c->offsets[queue]);
}

static size_t take_answers(const struct options *o, struct connection *c, struct totals *t) {
    size_t at = 0;
    while (c->in_length - at >= 8) {
        uint32_t length = get_u32(c->in + at);
        if (length + 4 > IN_BYTES) die("answer too large");
        if (c->in_length - at < length + 4) break;
        const char *header = c->in + at + 8, *end = c->in + at + 4 + length;
        uint32_t header_bytes = get_u32(c->in + at + 4) & 0xFFFFFF;
        long code = header_number(header, header_bytes, "\"code\"");
        long opaque = header_number(header, header_bytes, "\"opaque\"");
        at += 4 + length;
        if (is_follower(o, c)) {
            follow(o, c, t, code, opaque, header_number(header, header_bytes, "\"nextBeginOffset\""));
            continue;
        }
        if (o->kind == COMMIT && code == 0 && !c->is_end[opaque % PAST]) {
            add_commit(c, header, header_bytes, c->started_us[opaque % PAST]);
            continue;
        }
        note_answer(c, t, opaque);
        if (o->kind == PULL)
            take_pull_answer(c, t, code, header + header_bytes, end,
                             header_number(header, header_bytes, "\"nextBeginOffset\""));
        else if (code == (o->kind == ECHO ? 310 : 0))
            t->messages += o->kind == BATCH ? o->messages : 1;
        else
            t->errors++;
    }
    return at;
}

static size_t request_bytes(const struct options *o) {
    return HEADER_BYTES + (size_t)o->body_bytes * o->messages + 128u * o->messages;
}

static int connection_count(const struct options *o) {
    return o->connections + (o->kind == FAN ? o->groups : 0);
}

static int is_over; /* sends have ended; groups receive the remaining messages */

static int window_of(const struct options *o, const struct connection *c) {
    if (is_follower(o, c)) return o->queues;
    return is_over ? 0 : o->window;
}

static void greet(const struct options *o, struct connection *c) {
    (void)o, (void)c;
}

static int is_drained(const struct options *o, const struct totals *t) {
    is_over = 1;
    return t->looked_at >= t->messages * o->groups && t->messages >= (long)next_key;
}

static int usage(void) {
    fprintf(stderr, "usage: see the head of load.c\n");
    return 2;
}

int main(int count, char **words) {
    struct options o = {.window = 1, .messages = 1};
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    epoch_ms = wall.tv_sec * 1000ull + wall.tv_nsec / 1000000;
    if (count > 8 && !strncmp(words[count - 1], "sign=", 5)) sign_as(words[--count] + 5);
    if (count > 8 && !strncmp(words[count - 1], "rate=", 5)) o.rate = atof(words[--count] + 5);
    if (count < 8) return usage();
    while (o.kind < KINDS && strcmp(words[1], kind_names[o.kind])) o.kind++;
    o.port = atoi(words[2]);
    o.topic = words[3];
    o.queues = atoi(words[4]);
    o.connections = atoi(words[5]);
    if (o.kind == PULL) {
        o.messages = atoi(words[6]);
        o.seconds = atof(words[7]);
        if (count > 8) o.expression = words[8];
    } else if (count >= (o.kind == BATCH || o.kind == FAN ? 10 : 9)) {
        o.window = atoi(words[6]);
        o.body_bytes = atoi(words[7]);
        o.seconds = atof(words[8]);
        if (o.kind == BATCH) o.messages = atoi(words[9]);
        if (o.kind == SEND && count > 9) o.topics = atoi(words[9]);
        if (o.kind == FAN) o.groups = atoi(words[9]), o.messages = FAN_MESSAGES;
        if (o.rate) o.window = PACED_WINDOW;
    }
    if (o.kind == KINDS || o.queues < 1 || o.connections < 1 || o.window < 1 || o.messages < 1 || o.seconds <= 0) return usage();
    run(&o, kind_names[o.kind], o.kind == FAN);
    return 0;
}
