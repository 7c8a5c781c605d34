/* The load generator for Apache Kafka: produce requests, one record batch each.
 *
 *   kafka PORT TOPIC PARTITIONS CONNECTIONS WINDOW BODY_BYTES SECONDS RECORDS ACKS
 *
 * Each connection keeps WINDOW requests in flight, each for the next partition, each with one batch
 * of RECORDS records, each with a unique key and a body of BODY_BYTES. ACKS is -1 for all replicas.
 * The output is that of load.c.
 *
 * A request, version 3 of the Produce API (big-endian; a string has an int16 length before it):
 *
 *   int32 bytes | int16 0 | int16 3 | int32 correlation | string client | int16 -1 (no transaction)
 *   | int16 acks | int32 timeout_ms | int32 1 | string topic | int32 1 | int32 partition
 *   | int32 bytes | record batch
 *
 * A record batch, format 2; crc is the CRC-32C of all following bytes:
 *
 *   int64 0 | int32 bytes | int32 -1 (leader epoch) | int8 2 | uint32 crc | int16 0 (attributes)
 *   | int32 last delta | int64 first ms | int64 last ms | int64 -1 (producer) | int16 -1 | int32 -1
 *   | int32 count | records: varint bytes, int8 0, varint 0 (time), varint offset delta, varint and
 *   bytes of key and of body, varint 0 (headers)
 *
 * An answer: int32 bytes | int32 correlation | int32 1 | string topic | int32 1 | int32 partition
 *   | int16 error | int64 offset | int64 append ms | int32 throttle ms
 */
#include "engine.h"

enum { HEAD_BYTES = 160, BATCH_HEAD_BYTES = 61, RECORD_HEAD_BYTES = 24 };

static int acks;
static uint64_t epoch_ms;
static uint32_t crc_table[256];

static void make_crc_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 8; bit++) value = value >> 1 ^ (value & 1 ? 0x82F63B78u : 0);
        crc_table[i] = value;
    }
}

static uint32_t crc_by_table(const char *at, size_t length) {
    uint32_t value = ~0u;
    while (length--) value = value >> 8 ^ crc_table[(value ^ (uint8_t)*at++) & 255];
    return ~value;
}

#ifdef __x86_64__
static __attribute__((target("sse4.2"))) uint32_t crc_by_processor(const char *at, size_t length) {
    uint64_t value = 0xFFFFFFFF, word;
    for (; length >= 8; at += 8, length -= 8) {
        memcpy(&word, at, 8);
        value = __builtin_ia32_crc32di(value, word);
    }
    while (length--) value = __builtin_ia32_crc32qi(value, *at++);
    return ~(uint32_t)value;
}

static uint32_t crc32c(const char *at, size_t length) {
    return __builtin_cpu_supports("sse4.2") ? crc_by_processor(at, length)
                                            : crc_by_table(at, length);
}
#else
#define crc32c crc_by_table
#endif

static char *put_i16(char *at, int value) {
    at[0] = (char)(value >> 8);
    at[1] = (char)value;
    return at + 2;
}

static char *put_i32(char *at, uint32_t value) {
    put_u32(at, value);
    return at + 4;
}

static char *put_i64(char *at, uint64_t value) {
    return put_i32(put_i32(at, value >> 32), value);
}

static char *put_string(char *at, const char *text) {
    size_t length = strlen(text);
    at = put_i16(at, length);
    memcpy(at, text, length);
    return at + length;
}

static char *put_varint(char *at, int64_t signed_value) {
    uint64_t value = (uint64_t)signed_value << 1 ^ (uint64_t)(signed_value >> 63);
    for (; value >= 128; value >>= 7) *at++ = (char)(value | 128);
    *at++ = (char)value;
    return at;
}

static int varint_bytes(int64_t value) {
    char scratch[10];
    return put_varint(scratch, value) - scratch;
}

static char *put_record(char *at, int delta, int body_bytes) {
    int bytes = 2 + varint_bytes(delta) + varint_bytes(KEY_BYTES) + KEY_BYTES
                + varint_bytes(body_bytes) + body_bytes + 1;
    at = put_varint(at, bytes);
    *at++ = 0;
    *at++ = 0;
    at = put_varint(at, delta);
    at = put_varint(at, KEY_BYTES);
    next_unique_key(at);
    at = put_varint(at + KEY_BYTES, body_bytes);
    memset(at, 'x', body_bytes);
    at += body_bytes;
    *at++ = 0;
    return at;
}

static char *put_batch(char *batch, const struct options *o) {
    char *crc_at = batch + 17, *checked = batch + 21, *at = checked;
    at = put_i16(at, 0);
    at = put_i32(at, o->messages - 1);
    at = put_i64(at, epoch_ms);
    at = put_i64(at, epoch_ms);
    at = put_i64(at, -1);
    at = put_i16(at, -1);
    at = put_i32(at, -1);
    at = put_i32(at, o->messages);
    for (int i = 0; i < o->messages; i++) at = put_record(at, i, o->body_bytes);
    put_i64(batch, 0);
    put_i32(batch + 8, at - batch - 12);
    put_i32(batch + 12, -1);
    batch[16] = 2;
    put_u32(crc_at, crc32c(checked, at - checked));
    return at;
}

static void add_request(const struct options *o, struct connection *c) {
    char *frame = c->out + c->out_length, *at = frame + 4, *sized;
    at = put_i16(at, 0);
    at = put_i16(at, 3);
    at = put_i32(at, c->opaque);
    at = put_string(at, "load");
    at = put_i16(at, -1);
    at = put_i16(at, acks);
    at = put_i32(at, 30000);
    at = put_i32(at, 1);
    at = put_string(at, o->topic);
    at = put_i32(at, 1);
    at = put_i32(at, (c->queue + c->opaque) % o->queues);
    sized = at;
    at = put_batch(at + 4, o);
    put_u32(sized, at - sized - 4);
    put_u32(frame, at - frame - 4);
    note_request(c, at - frame, now_us());
}

static size_t take_answers(const struct options *o, struct connection *c, struct totals *t) {
    size_t at = 0, error_at = 4 + 4 + 4 + 2 + strlen(o->topic) + 4 + 4;
    while (c->in_length - at >= 4) {
        size_t length = 4 + (size_t)get_u32(c->in + at);
        if (length < error_at + 2 || length > IN_BYTES) die("an answer that is none");
        if (c->in_length - at < length) break;
        const char *error = c->in + at + error_at;
        note_answer(c, t, get_u32(c->in + at + 4));
        if (error[0] || error[1]) t->errors++;
        else t->messages += o->messages;
        at += length;
    }
    return at;
}

static size_t request_bytes(const struct options *o) {
    return HEAD_BYTES + strlen(o->topic) + BATCH_HEAD_BYTES
           + (size_t)o->messages * (RECORD_HEAD_BYTES + KEY_BYTES + o->body_bytes);
}

static int connection_count(const struct options *o) {
    return o->connections;
}

static int window_of(const struct options *o, const struct connection *c) {
    (void)c;
    return o->window;
}

static void greet(const struct options *o, struct connection *c) {
    (void)o, (void)c; /* clients need not negotiate a version that the server supports */
}

static int is_drained(const struct options *o, const struct totals *t) {
    (void)o, (void)t;
    return 1;
}

int main(int count, char **words) {
    struct options o = {.messages = 1};
    struct timespec wall;
    if (count != 10) {
        fprintf(stderr, "usage: see the head of kafka.c\n");
        return 2;
    }
    clock_gettime(CLOCK_REALTIME, &wall);
    epoch_ms = wall.tv_sec * 1000ull + wall.tv_nsec / 1000000;
    make_crc_table();
    if (crc32c("123456789", 9) != 0xE3069283u || crc_by_table("123456789", 9) != 0xE3069283u)
        die("CRC-32C");
    o.port = atoi(words[1]);
    o.topic = words[2];
    o.queues = atoi(words[3]);
    o.connections = atoi(words[4]);
    o.window = atoi(words[5]);
    o.body_bytes = atoi(words[6]);
    o.seconds = atof(words[7]);
    o.messages = atoi(words[8]);
    acks = atoi(words[9]);
    if (o.queues < 1 || o.connections < 1 || o.window < 1 || o.messages < 1 || o.seconds <= 0) {
        fprintf(stderr, "usage: see the head of kafka.c\n");
        return 2;
    }
    run(&o, "kafka", 0);
    return 0;
}
