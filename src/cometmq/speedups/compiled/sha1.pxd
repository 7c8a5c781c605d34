# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""HMAC-SHA1 of several texts at once, which hashlib computes only one by one.

One step hashes a block of each text, in the lanes of a vector. A single text is hashed with the
processor's SHA instructions if there are any. A module that uses it calls `look_for_lanes` once,
when it is imported.
"""

from cometmq.speedups.compiled.octets cimport Bytes

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    enum { BLOCK_BYTES = 64, LANES_MAX = 16, SHA1_BYTES = 20 };
    /* States after the block of a key: of the inner hash, and of the outer one. */
    typedef struct { uint32_t inner[5], outer[5]; } SigningKey;
    /* A text, with its padding, and its digest. */
    typedef struct {
        const SigningKey *key;
        const unsigned char *text;
        size_t blocks;
        unsigned char digest[SHA1_BYTES];
    } Signing;

    static inline uint32_t word_at(const unsigned char *p) {
        return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    static inline void put_word(unsigned char *p, uint32_t v) {
        p[0] = v >> 24; p[1] = v >> 16; p[2] = v >> 8; p[3] = v;
    }
    #define ROTATED(x, n) ((x) << (n) | (x) >> (32 - (n)))
    #if defined(__GNUC__) && !defined(__clang__)
    #define UNROLLED _Pragma("GCC unroll 80")
    #else
    #define UNROLLED _Pragma("unroll")
    #endif
    /* Define NAME(state, texts): add one block of each of COUNT texts to COUNT states, whose words
       are stored side by side. VECTOR holds COUNT words. */
    #define HASH_BLOCK(NAME, VECTOR, COUNT)                                                      \
    static void NAME(uint32_t state[5][COUNT], const unsigned char *const texts[COUNT]) {        \
        uint32_t words[16][COUNT];                                                               \
        VECTOR w[16], a, b, c, d, e, f, x, was[5];                                               \
        for (int t = 0; t < 16; t++)                                                             \
            for (int k = 0; k < COUNT; k++) words[t][k] = word_at(texts[k] + 4 * t);             \
        memcpy(w, words, sizeof w);                                                              \
        memcpy(was, state, sizeof was);                                                          \
        a = was[0]; b = was[1]; c = was[2]; d = was[3]; e = was[4];                              \
        UNROLLED                                                                                 \
        for (int t = 0; t < 80; t++) {                                                           \
            uint32_t constant = t < 20 ? 0x5A827999 : t < 40 ? 0x6ED9EBA1                        \
                                : t < 60 ? 0x8F1BBCDC : 0xCA62C1D6;                              \
            if (t >= 16) {                                                                       \
                x = w[(t - 3) & 15] ^ w[(t - 8) & 15] ^ w[(t - 14) & 15] ^ w[t & 15];            \
                w[t & 15] = ROTATED(x, 1);                                                       \
            }                                                                                    \
            f = t < 20 ? d ^ (b & (c ^ d)) : t >= 40 && t < 60 ? (b & c) | (d & (b | c))         \
                : b ^ c ^ d;                                                                     \
            x = ROTATED(a, 5) + f + e + constant + w[t & 15];                                    \
            e = d; d = c; c = ROTATED(b, 30); b = a; a = x;                                      \
        }                                                                                        \
        was[0] += a; was[1] += b; was[2] += c; was[3] += d; was[4] += e;                         \
        memcpy(state, was, sizeof was);                                                          \
    }
    HASH_BLOCK(hash_block_of_1, uint32_t, 1)

    static int has_sha, lanes, best_sha, best_lanes;
    #if defined(__x86_64__)
    #include <cpuid.h>
    #include <immintrin.h>
    typedef uint32_t Words8 __attribute__((vector_size(32)));
    typedef uint32_t Words16 __attribute__((vector_size(64)));
    __attribute__((target("avx2"))) HASH_BLOCK(hash_block_of_8, Words8, 8)
    __attribute__((target("avx512f"))) HASH_BLOCK(hash_block_of_16, Words16, 16)
    static void look_for_lanes(void) {
        unsigned int a, b, c, d, saved = 0, high;
        if (!__get_cpuid(1, &a, &b, &c, &d)) return;
        if (c & 1u << 27)  /* Which registers the system saves: those of AVX, those of AVX-512. */
            __asm__ volatile (".byte 0x0f, 0x01, 0xd0" : "=a"(saved), "=d"(high) : "c"(0));
        has_sha = (c & 1u << 9) && (c & 1u << 19);
        if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) b = 0;
        has_sha = has_sha && (b & 1u << 29);
        if ((saved & 0xE6) == 0xE6 && (b & 1u << 16)) lanes = 16;
        else if ((saved & 6) == 6 && (b & 1u << 5)) lanes = 8;
        best_sha = has_sha;
        best_lanes = lanes;
    }
    /* Four rounds of SHA-1. The words of the schedule are in m; E and F hold the fifth word. */
    #define ROUNDS_4(i, E, F, KIND)                                                              \
        E = i ? _mm_sha1nexte_epu32(E, m[i & 3]) : _mm_add_epi32(E, m[0]);                       \
        F = abcd;                                                                                \
        if (i >= 3 && i < 19) m[(i + 1) & 3] = _mm_sha1msg2_epu32(m[(i + 1) & 3], m[i & 3]);     \
        abcd = _mm_sha1rnds4_epu32(abcd, E, KIND);                                               \
        if (i >= 1 && i < 17) m[(i + 3) & 3] = _mm_sha1msg1_epu32(m[(i + 3) & 3], m[i & 3]);     \
        if (i >= 2 && i < 18) m[(i + 2) & 3] = _mm_xor_si128(m[(i + 2) & 3], m[i & 3]);
    #define ROUNDS_20(i, E, F, KIND)                                                             \
        ROUNDS_4(i, E, F, KIND) ROUNDS_4(i + 1, F, E, KIND) ROUNDS_4(i + 2, E, F, KIND)          \
        ROUNDS_4(i + 3, F, E, KIND) ROUNDS_4(i + 4, E, F, KIND)
    __attribute__((target("sha,sse4.1,ssse3")))
    static void hash_blocks_with_sha(uint32_t state[5], const unsigned char *p, size_t blocks) {
        const __m128i swap = _mm_set_epi64x(0x0001020304050607, 0x08090a0b0c0d0e0f);
        __m128i m[4], was, e0, e1, e_was;
        __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0x1B);
        e0 = _mm_set_epi32((int)state[4], 0, 0, 0);
        for (; blocks; blocks--, p += BLOCK_BYTES) {
            was = abcd;
            e_was = e0;
            for (int k = 0; k < 4; k++)
                m[k] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)p + k), swap);
            ROUNDS_20(0, e0, e1, 0)
            ROUNDS_20(5, e1, e0, 1)
            ROUNDS_20(10, e0, e1, 2)
            ROUNDS_20(15, e1, e0, 3)
            e0 = _mm_sha1nexte_epu32(e0, e_was);
            abcd = _mm_add_epi32(abcd, was);
        }
        _mm_storeu_si128((__m128i *)state, _mm_shuffle_epi32(abcd, 0x1B));
        state[4] = (uint32_t)_mm_extract_epi32(e0, 3);
    }
    #else
    static void look_for_lanes(void) {}
    #endif

    static void hash_blocks(uint32_t state[5], const unsigned char *p, size_t blocks) {
    #if defined(__x86_64__)
        if (has_sha) {
            hash_blocks_with_sha(state, p, blocks);
            return;
        }
    #endif
        for (; blocks; blocks--, p += BLOCK_BYTES) {
            uint32_t words[5][1];
            memcpy(words, state, sizeof words);
            hash_block_of_1(words, &p);
            memcpy(state, words, sizeof words);
        }
    }
    /* Make the states of a key of at most 64 bytes. */
    static void make_key(SigningKey *key, const unsigned char *secret, size_t size) {
        static const uint32_t start[5] = {
            0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0 };
        unsigned char block[BLOCK_BYTES];
        memcpy(key->inner, start, sizeof start);
        memcpy(key->outer, start, sizeof start);
        memset(block, 0x36, sizeof block);
        for (size_t n = 0; n < size; n++) block[n] ^= secret[n];
        hash_blocks(key->inner, block, 1);
        for (size_t n = 0; n < sizeof block; n++) block[n] ^= 0x36 ^ 0x5C;
        hash_blocks(key->outer, block, 1);
        memset(block, 0, sizeof block);
    }
    /* Return the number of blocks of a text of this size that follows the block of a key. */
    static inline size_t padded_blocks(size_t size) { return (size + 9 + 63) / BLOCK_BYTES; }
    /* Write what follows the text in its blocks. */
    static inline void pad_text(unsigned char *text, size_t size) {
        size_t end = padded_blocks(size) * BLOCK_BYTES;
        uint64_t bits = ((uint64_t)size + BLOCK_BYTES) * 8;
        memset(text + size, 0, end - size);
        text[size] = 0x80;
        put_word(text + end - 8, (uint32_t)(bits >> 32));
        put_word(text + end - 4, (uint32_t)bits);
    }
    static void pad_digest(unsigned char *block, const uint32_t *words, size_t step) {
        for (int n = 0; n < 5; n++) put_word(block + 4 * n, words[n * step]);
        pad_text(block, SHA1_BYTES);
    }
    static void sign_one(Signing *row) {
        unsigned char block[BLOCK_BYTES];
        uint32_t state[5];
        memcpy(state, row->key->inner, sizeof state);
        hash_blocks(state, row->text, row->blocks);
        pad_digest(block, state, 1);
        memcpy(state, row->key->outer, sizeof state);
        hash_blocks(state, block, 1);
        for (int n = 0; n < 5; n++) put_word(row->digest + 4 * n, state[n]);
    }
    #if defined(__x86_64__)
    /* Define NAME(rows, count): sign up to COUNT texts. A text that ends early leaves its lane
       hashing zeros. */
    #define SIGN_LANES(NAME, HASH, COUNT)                                                        \
    static void NAME(Signing *rows, int count) {                                                 \
        static const unsigned char zeros[BLOCK_BYTES];                                           \
        unsigned char blocks[COUNT][BLOCK_BYTES];                                                \
        uint32_t state[5][COUNT] = {{0}};                                                        \
        const unsigned char *texts[COUNT];                                                       \
        size_t longest = 0;                                                                      \
        for (int k = 0; k < count; k++) {                                                        \
            if (rows[k].blocks > longest) longest = rows[k].blocks;                              \
            for (int n = 0; n < 5; n++) state[n][k] = rows[k].key->inner[n];                     \
        }                                                                                        \
        for (size_t at = 0; at < longest; at++) {                                                \
            for (int k = 0; k < COUNT; k++)                                                      \
                texts[k] = k < count && at < rows[k].blocks ? rows[k].text + at * BLOCK_BYTES    \
                                                            : zeros;                             \
            HASH(state, texts);                                                                  \
            for (int k = 0; k < count; k++)                                                      \
                if (at + 1 == rows[k].blocks) pad_digest(blocks[k], &state[0][k], COUNT);        \
        }                                                                                        \
        for (int k = 0; k < COUNT; k++) {                                                        \
            texts[k] = k < count ? blocks[k] : zeros;                                            \
            for (int n = 0; n < 5; n++) state[n][k] = k < count ? rows[k].key->outer[n] : 0;     \
        }                                                                                        \
        HASH(state, texts);                                                                      \
        for (int k = 0; k < count; k++)                                                          \
            for (int n = 0; n < 5; n++) put_word(rows[k].digest + 4 * n, state[n][k]);           \
    }
    SIGN_LANES(sign_8, hash_block_of_8, 8)
    SIGN_LANES(sign_16, hash_block_of_16, 16)
    #endif
    /* Sign all rows. A few are signed faster one by one. */
    static void sign_all(Signing *rows, int count) {
        int left = count, few = has_sha ? 4 : 1;
    #if defined(__x86_64__)
        while (lanes && left > few) {
            int some = left < lanes ? left : lanes;
            if (lanes == 16) sign_16(rows, some);
            else sign_8(rows, some);
            rows += some;
            left -= some;
        }
    #endif
        for (; left > 0; left--) sign_one(rows++);
    }
    /* Hash as a processor does that has only this; return whether this one has it. For tests. */
    static int restrict_to(int sha, int count) {
        int can = best_sha >= sha && best_lanes >= count;
        if (can) { has_sha = sha; lanes = count; }
        return can;
    }
    /* Return whether a digest in base64 is this text of 28 bytes. Takes the same time for all. */
    static int is_base64_of(const unsigned char *digest, const unsigned char *text) {
        static const char digits[] =
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        unsigned int differing = 0;
        for (int n = 0; n < 7; n++, text += 4) {
            const unsigned char *p = digest + 3 * n;
            uint32_t v = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | (n < 6 ? p[2] : 0);
            differing |= (unsigned char)digits[v >> 18] ^ text[0];
            differing |= (unsigned char)digits[v >> 12 & 63] ^ text[1];
            differing |= (unsigned char)digits[v >> 6 & 63] ^ text[2];
            differing |= (n < 6 ? (unsigned char)digits[v & 63] : '=') ^ text[3];
        }
        return !differing;
    }
    """
    enum:
        BLOCK_BYTES
        SHA1_BYTES
    ctypedef struct SigningKey:
        pass
    ctypedef struct Signing:
        const SigningKey *key
        Bytes text
        size_t blocks
        unsigned char digest[20]
    void look_for_lanes()
    bint restrict_to(int, int)
    void make_key(SigningKey *, Bytes, size_t)
    size_t padded_blocks(size_t) nogil
    void pad_text(unsigned char *, size_t) nogil
    void sign_all(Signing *, int) nogil
    bint is_base64_of(Bytes, Bytes) nogil
