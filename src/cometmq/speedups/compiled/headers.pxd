# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Plain JSON headers of frames.

A :class:`Form` describes the fields of a header, by its code. All functions read only between the
two pointers that they are passed.
"""

from libc.string cimport memcmp, memmove

from cometmq.speedups.compiled.octets cimport Bytes
from cometmq.speedups.compiled.texts cimport Span, is_text

cdef extern from "Python.h":
    char *PyBytes_AsString(object) except NULL
    Py_ssize_t PyBytes_Size(object) except -1

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    /* Return the first byte that cannot stand unescaped in an ASCII string, or the end. Eight
       bytes are tested at a time; the lowest mark in a word is always right. */
    static inline const unsigned char *plain_end(const unsigned char *p, const unsigned char *end) {
    #if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
        for (; end - p >= 8; p += 8) {
            uint64_t w, quote, slash;
            memcpy(&w, p, 8);
            quote = w ^ ones * '"';
            slash = w ^ ones * '\\\\';
            w = (w | (w - ones * 0x20) | (quote - ones) | (slash - ones)) & tops;
            if (w) return p + (__builtin_ctzll(w) >> 3);
        }
    #endif
        while (p < end && *p >= 0x20 && *p < 0x80 && *p != '"' && *p != '\\\\') p++;
        return p;
    }
    """
    Bytes plain_end(Bytes, Bytes) nogil

cdef enum:
    FIELDS_MAX = 14
    #: Maximum number of frames examined in search of a plain one.
    ODD_MAX = 32
    #: Maximum header size of plain answers and pulls, in bytes.
    SHORT_HEADER_MAX_BYTES = 1023
    #: Maximum number of fields in a signed request.
    ALL_FIELDS_MAX = 32

# Kinds of strings: ASCII without escapes; UTF-8 without escapes; UTF-8 with escapes.
cdef enum:
    ASCII = 0
    WIDE = 1
    ESCAPED = 2

# Kinds of field values: ASCII without escapes; UTF-8 without escapes; UTF-8 with escapes; `false`
# or `true`; `false`; a 31-bit number; a 63-bit number.
cdef enum:
    TEXT = 0
    WIDE_TEXT = 1
    ESCAPED_TEXT = 2
    TRUTH = 3
    FALSE = 4
    NUMBER = 5
    LONG_NUMBER = 6

# Bits of the members of a header in `seen`.
cdef enum:
    CODE = 1
    EXT_FIELDS = 2
    FLAG = 4
    OPAQUE = 8
    REMARK = 128


cdef struct Field:
    const char *name
    int name_bytes
    int holds


cdef struct Form:
    long long code
    const Field *fields
    int count
    # Bits of the required fields.
    int required
    # Whether the fields are named a, b, c ...
    bint has_letters
    # Whether unknown fields are ignored; otherwise they make the header odd.
    bint has_others


cdef struct Header:
    long long code
    long long flag
    long long opaque
    int seen
    # Bits of the fields that are present, and their values by field number.
    int fields
    Span texts[FIELDS_MAX]
    int kinds[FIELDS_MAX]
    long long numbers[FIELDS_MAX]


# All fields of a header, in the order of their names.
cdef struct AllFields:
    # -1 if a name is repeated, or if there are too many fields.
    int count
    Span names[ALL_FIELDS_MAX]
    Span texts[ALL_FIELDS_MAX]
    unsigned char kinds[ALL_FIELDS_MAX]
    # Indexes of the fields, in order.
    unsigned char order[ALL_FIELDS_MAX + 1]


cdef inline int order_of(Span *left, Span *right) noexcept nogil:
    """Compare two names: negative, 0 or positive."""
    cdef int compared
    if left.size and right.size and left.at[0] != right.at[0]:
        return left.at[0] - right.at[0]
    compared = memcmp(left.at, right.at, min(left.size, right.size))
    return compared if compared else (left.size > right.size) - (left.size < right.size)


cdef inline void note_field(AllFields *all, Span *name, Span *text, int kind) noexcept nogil:
    """Add a field. Most come in the order of their names already."""
    cdef int count = all.count, low = 0, high, middle, compared
    if count < 0:
        return
    if count == ALL_FIELDS_MAX:
        all.count = -1
        return
    all.names[count] = name[0]
    all.texts[count] = text[0]
    all.kinds[count] = kind
    high = count
    middle = count - 1
    while low < high:
        compared = order_of(name, &all.names[all.order[middle]])
        if not compared:
            all.count = -1
            return
        if compared > 0:
            low = middle + 1
        else:
            high = middle
        middle = (low + high) // 2
    memmove(&all.order[low + 1], &all.order[low], count - low)
    all.order[low] = count
    all.count = count + 1


cdef inline int make_fields(Field *fields, tuple named) except -1:
    """Fill `fields` from pairs of a name and a kind. `named` must outlive the fields."""
    cdef int number
    for number in range(len(named)):
        name, fields[number].holds = named[number]
        fields[number].name = PyBytes_AsString(name)
        fields[number].name_bytes = <int>PyBytes_Size(name)
    return 0


cdef inline Form form_of(
    long long code, const Field *fields, int count, int required, bint has_letters=False,
    bint has_others=True,
) noexcept:
    cdef Form form
    form.code = code
    form.fields = fields
    form.count = count
    form.required = required
    form.has_letters = has_letters
    form.has_others = has_others
    return form


cdef inline bint read_mark(Bytes *cursor, Bytes end, unsigned char mark) noexcept nogil:
    if cursor[0] >= end or cursor[0][0] != mark:
        return False
    cursor[0] += 1
    return True


cdef inline bint read_string(Bytes *cursor, Bytes end, Span *found, int *kind) noexcept nogil:
    """Read a string whose quote is at the cursor; False if there is none or it is not closed."""
    cdef Bytes p = cursor[0]
    kind[0] = ASCII
    if p >= end or p[0] != c'"':
        return False
    p += 1
    found.at = p
    while True:
        p = plain_end(p, end)
        if p == end or p[0] < 0x20:
            return False
        if p[0] == c'"':
            found.size = p - found.at
            cursor[0] = p + 1
            return True
        if p[0] == c'\\':
            kind[0] = ESCAPED
            p += 1
            if p == end or p[0] < 0x20 or p[0] >= 0x80:
                return False
            p += 1
        else:
            if kind[0] == ASCII:
                kind[0] = WIDE
            while p < end and p[0] >= 0x80:
                p += 1


cdef inline bint read_ascii(Bytes *cursor, Bytes end, Span *found) noexcept nogil:
    """Read a string in ASCII without escapes whose quote is at the cursor."""
    cdef int kind
    return read_string(cursor, end, found, &kind) and kind == ASCII


cdef inline bint read_number(
    Bytes *cursor, Bytes end, long long limit, long long *found
) noexcept nogil:
    """Read an integer up to `limit`, without sign or leading zeros."""
    cdef Bytes p = cursor[0]
    cdef unsigned long long value = 0
    cdef int count = 0
    while p < end and c'0' <= p[0] <= c'9' and count < 19:
        value = value * 10 + (p[0] - c'0')
        p += 1
        count += 1
    if count == 0 or (count > 1 and cursor[0][0] == c'0'):
        return False
    if p < end and c'0' <= p[0] <= c'9':
        return False
    if value > <unsigned long long>limit:
        return False
    cursor[0] = p
    found[0] = <long long>value
    return True


cdef inline int field_number(const Form *form, Span *name) noexcept nogil:
    """Return the number of a field by its name; -1 if the form does not have it."""
    cdef int number
    if form.has_letters:
        if name.size == 1 and 0 <= name.at[0] - c'a' < form.count:
            return name.at[0] - c'a'
        return -1
    for number in range(form.count):
        if name.size == form.fields[number].name_bytes:
            if memcmp(name.at, form.fields[number].name, name.size) == 0:
                return number
    return -1


cdef inline bint holds_right(int holds, Span *text, int kind, long long *number) noexcept nogil:
    """Return whether a field of kind `holds` accepts a text; store the value of a number."""
    cdef Bytes at
    if holds >= NUMBER:
        at = text.at
        return read_number(
            &at, text.at + text.size, 0x7FFFFFFF if holds == NUMBER else 0x7FFFFFFFFFFFFFFF, number
        ) and at == text.at + text.size
    if holds <= ESCAPED_TEXT:
        return kind <= holds
    return is_text(text, b"false", 5) or (holds == TRUTH and is_text(text, b"true", 4))


cdef inline bint read_fields(
    Bytes *cursor, Bytes end, const Form *form, Header *header, AllFields *all
) noexcept nogil:
    """Read the fields of a form whose opening brace is at the cursor; False if they are odd."""
    cdef Bytes p = cursor[0]
    cdef Span name, text
    cdef int number, kind
    if not read_mark(&p, end, c'{'):
        return False
    while True:
        if not (
            read_ascii(&p, end, &name) and read_mark(&p, end, c':')
            and read_string(&p, end, &text, &kind)
        ):
            return False
        if all != NULL:
            note_field(all, &name, &text, kind)
        number = field_number(form, &name)
        if number >= 0:
            if header.fields & 1 << number:
                return False
            header.fields |= 1 << number
            header.texts[number] = text
            header.kinds[number] = kind
            if not holds_right(
                form.fields[number].holds, &text, kind, &header.numbers[number]
            ):
                return False
        elif kind != ASCII or not form.has_others:
            return False
        if not read_mark(&p, end, c','):
            break
    if not read_mark(&p, end, c'}'):
        return False
    cursor[0] = p
    return header.fields & form.required == form.required


cdef inline bint read_header(
    Bytes p, Bytes end, const Form *forms, int form_count, Header *header, AllFields *all=NULL
) noexcept nogil:
    """Read a header; False unless it is plain and has one of the forms.

    The code must precede the fields; the code, the fields and the opaque are required. With `all`,
    the fields that the form does not have are kept, too.
    """
    cdef Span name, text
    cdef long long number
    cdef int bit, n
    cdef const Form *form = NULL
    header.flag = 0
    header.seen = header.fields = 0
    if all != NULL:
        all.count = 0
    if not read_mark(&p, end, c'{'):
        return False
    while True:
        if not (read_ascii(&p, end, &name) and read_mark(&p, end, c':')):
            return False
        if is_text(&name, b"code", 4):
            bit = CODE
            if not read_number(&p, end, 0x7FFFFFFF, &header.code):
                return False
            for n in range(form_count):
                if forms[n].code == header.code:
                    form = &forms[n]
            if form == NULL:
                return False
        elif is_text(&name, b"extFields", 9):
            bit = EXT_FIELDS
            if form == NULL or not read_fields(&p, end, form, header, all):
                return False
        elif is_text(&name, b"flag", 4):
            bit = FLAG
            if not read_number(&p, end, 0x7FFFFFFF, &header.flag):
                return False
        elif is_text(&name, b"opaque", 6):
            bit = OPAQUE
            if not read_number(&p, end, 0x7FFFFFFF, &header.opaque):
                return False
        elif is_text(&name, b"version", 7):
            bit = 16
            if not read_number(&p, end, 0x7FFFFFFF, &number):
                return False
        else:
            if is_text(&name, b"language", 8):
                bit = 32
            elif is_text(&name, b"serializeTypeCurrentRPC", 23):
                bit = 64
            elif is_text(&name, b"remark", 6):
                bit = REMARK
            else:
                return False
            if not read_ascii(&p, end, &text):
                return False
        if header.seen & bit:
            return False
        header.seen |= bit
        if not read_mark(&p, end, c','):
            break
    return (
        read_mark(&p, end, c'}') and p == end
        and header.seen & (CODE | EXT_FIELDS | OPAQUE) == CODE | EXT_FIELDS | OPAQUE
    )
