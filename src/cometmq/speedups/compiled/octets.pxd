# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Conversion of numbers: big-endian bytes, as on the wire and on disk, and text."""

cdef extern from *:
    """
    #include <stdint.h>
    static inline uint32_t be16(const unsigned char *p) { return (uint32_t)p[0] << 8 | p[1]; }
    static inline uint32_t be32(const unsigned char *p) {
        return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    static inline int64_t be64(const unsigned char *p) {
        return (int64_t)((uint64_t)be32(p) << 32 | be32(p + 4));
    }
    static inline void put16(unsigned char *p, uint32_t v) { p[0] = v >> 8; p[1] = v; }
    static inline void put32(unsigned char *p, uint32_t v) {
        p[0] = v >> 24; p[1] = v >> 16; p[2] = v >> 8; p[3] = v;
    }
    static inline void put64(unsigned char *p, uint64_t v) {
        put32(p, (uint32_t)(v >> 32)); put32(p + 4, (uint32_t)v);
    }
    /* Write 16 hexadecimal digits. Each step spreads the digits to twice as many bytes; the last
       one adds what separates A from 9 where a digit is above 9. */
    static inline void put_digits(unsigned char *p, uint64_t v) {
        for (int k = 0; k < 2; k++, p += 8, v <<= 32) {
            uint64_t w = v >> 32;
            w = (w | w << 16) & 0x0000FFFF0000FFFFu;
            w = (w | w << 8) & 0x00FF00FF00FF00FFu;
            w = (w | w << 4) & 0x0F0F0F0F0F0F0F0Fu;
            w += 0x3030303030303030u + ((w + 0x0606060606060606u) >> 4 & 0x0101010101010101u) * 7;
            put64(p, w);
        }
    }
    """
    unsigned int be16(const unsigned char *) nogil
    unsigned int be32(const unsigned char *) nogil
    long long be64(const unsigned char *) nogil
    void put16(unsigned char *, unsigned int) nogil
    void put32(unsigned char *, unsigned int) nogil
    void put64(unsigned char *, unsigned long long) nogil
    void put_digits(unsigned char *, unsigned long long) nogil

ctypedef const unsigned char *Bytes

cdef enum:
    #: Maximum length of a number as text, with its sign.
    DIGITS_MAX = 20


cdef inline unsigned char *put_decimal(unsigned char *out, long long number) noexcept nogil:
    """Write a number in decimal and return its end, at most DIGITS_MAX bytes further on."""
    cdef unsigned char digits[DIGITS_MAX]
    cdef unsigned long long value = number
    cdef int count = 0
    if number < 0:
        out[0] = c'-'
        out += 1
        value = 0 - value
    while True:
        digits[count] = c'0' + value % 10
        value //= 10
        count += 1
        if not value:
            break
    while count:
        count -= 1
        out[0] = digits[count]
        out += 1
    return out


cdef inline unsigned char *put_hex(unsigned char *out, unsigned long long value) noexcept nogil:
    """Write a number as 16 hexadecimal digits and return their end."""
    put_digits(out, value)
    return out + 16
