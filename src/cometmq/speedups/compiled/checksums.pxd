# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""CRC-32 checksums of message bodies.

A module that uses them calls `make_crc_tables` and `look_at_processor` once, when it is imported.
"""

from cometmq.speedups.compiled.octets cimport Bytes

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    static uint32_t crc_tables[8][256];
    static void make_crc_tables(void) {
        for (uint32_t n = 0; n < 256; n++) {
            uint32_t c = n;
            for (int k = 0; k < 8; k++) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
            crc_tables[0][n] = c;
        }
        for (uint32_t n = 0; n < 256; n++)
            for (int t = 1; t < 8; t++)
                crc_tables[t][n] = crc_tables[0][crc_tables[t - 1][n] & 0xFF]
                                   ^ (crc_tables[t - 1][n] >> 8);
    }
    static uint32_t crc_by_tables(uint32_t c, const unsigned char *p, size_t n) {
        while (n >= 8) {
            uint32_t low = c ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16
                                | (uint32_t)p[3] << 24);
            c = crc_tables[7][low & 0xFF] ^ crc_tables[6][low >> 8 & 0xFF]
                ^ crc_tables[5][low >> 16 & 0xFF] ^ crc_tables[4][low >> 24]
                ^ crc_tables[3][p[4]] ^ crc_tables[2][p[5]] ^ crc_tables[1][p[6]]
                ^ crc_tables[0][p[7]];
            p += 8; n -= 8;
        }
        while (n--) c = crc_tables[0][(c ^ *p++) & 0xFF] ^ c >> 8;
        return c;
    }
    #if defined(__x86_64__)
    #include <cpuid.h>
    #include <immintrin.h>
    #define CRC_FOLDED __attribute__((target("pclmul,sse4.1")))
    static int crc_can_fold;
    static void look_at_processor(void) {
        unsigned int a, b, c, d;
        crc_can_fold = __get_cpuid(1, &a, &b, &c, &d) && (c & 1u << 1) && (c & 1u << 19);
    }
    /* One step of folding: add the remainder of x to the data 128 or 512 bits further on. */
    CRC_FOLDED static __m128i fold(__m128i x, __m128i factors, __m128i further) {
        return _mm_xor_si128(further, _mm_xor_si128(_mm_clmulepi64_si128(x, factors, 0x00),
                                                    _mm_clmulepi64_si128(x, factors, 0x11)));
    }
    /* CRC by carry-less multiplication; n is a multiple of 16 and at least 64. The factors are
       powers of x modulo the polynomial, bit-reflected (Gopal et al., Intel, 2009). */
    CRC_FOLDED static uint32_t crc_by_folding(uint32_t c, const unsigned char *p, size_t n) {
        const __m128i by_512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
        const __m128i by_128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
        const __m128i by_64 = _mm_set_epi64x(0, 0x163cd6124);
        const __m128i barrett = _mm_set_epi64x(0x1f7011641, 0x1db710641);
        const __m128i low_32 = _mm_set_epi32(0, ~0, 0, ~0);
        const __m128i *at = (const __m128i *)p;
        __m128i x[4], rest;
        int k;
        for (k = 0; k < 4; k++) x[k] = _mm_loadu_si128(at + k);
        x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)c));
        for (at += 4, n -= 64; n >= 64; at += 4, n -= 64)
            for (k = 0; k < 4; k++) x[k] = fold(x[k], by_512, _mm_loadu_si128(at + k));
        for (k = 1; k < 4; k++) x[0] = fold(x[0], by_128, x[k]);
        for (; n >= 16; at++, n -= 16) x[0] = fold(x[0], by_128, _mm_loadu_si128(at));
        rest = _mm_xor_si128(_mm_srli_si128(x[0], 8), _mm_clmulepi64_si128(x[0], by_128, 0x10));
        rest = _mm_xor_si128(_mm_srli_si128(rest, 4),
                             _mm_clmulepi64_si128(_mm_and_si128(rest, low_32), by_64, 0x00));
        x[0] = _mm_clmulepi64_si128(_mm_and_si128(rest, low_32), barrett, 0x10);
        x[0] = _mm_clmulepi64_si128(_mm_and_si128(x[0], low_32), barrett, 0x00);
        return (uint32_t)_mm_extract_epi32(_mm_xor_si128(rest, x[0]), 1);
    }
    #else
    static void look_at_processor(void) {}
    #endif
    static uint32_t crc32_of(const unsigned char *p, size_t n) {
        uint32_t c = 0xFFFFFFFFu;
        #if defined(__x86_64__)
        if (crc_can_fold && n >= 64) {
            size_t whole = n & ~(size_t)15;
            c = crc_by_folding(c, p, whole);
            p += whole; n -= whole;
        }
        #endif
        return ~crc_by_tables(c, p, n);
    }
    """
    void make_crc_tables()
    void look_at_processor()
    unsigned int crc32_of(const unsigned char *, size_t) nogil


cdef inline unsigned int stored_crc(Bytes p, Py_ssize_t size) noexcept nogil:
    """Return the checksum of a body in the form that its record stores."""
    return crc32_of(p, size) & 0x7FFFFFFF
