# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""SQL92 filters over stored records.

Compiled; plain/match.py is the definition. Records and entries are not trusted: `find_parts` keeps
all reads of a record within its size, and `match_records` keeps each record between two offsets
that lie within the log's buffer. plain/match.py has checked the program: each step finds its values
on the stack, and jumps lead forwards. Rare cases, such as a real number of more than 63 characters,
make an evaluation undecided; plain/match.py then evaluates that record.
"""

from cython cimport final
from cpython.buffer cimport PyObject_GetBuffer, PyBuffer_Release, PyBUF_SIMPLE
from libc.math cimport INFINITY
from libc.stdlib cimport calloc, free
from libc.string cimport memchr, memcmp, memcpy

from cometmq.speedups.compiled.octets cimport Bytes
from cometmq.speedups.compiled.records cimport (
    ENTRY_BYTES, GAP_BYTES, SPAN_BYTES, Held, Parts, Taken, find_parts, hold, is_record_of, let_go,
    read_entry,
)
from cometmq.speedups.compiled.texts cimport Span

from cometmq.speedups.plain import match as plain

cdef extern from "Python.h":
    object PyBytes_FromStringAndSize(const char *, Py_ssize_t)
    char *PyBytes_AsString(object) except NULL
    Py_ssize_t PyBytes_Size(object) except -1
    double PyOS_string_to_double(const char *, char **, void *) except? -1.0

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #if defined(__GNUC__)
    #define fetch_soon(p) __builtin_prefetch(p)
    #else
    #define fetch_soon(p) ((void)(p))
    #endif

    /* Return the first byte with one of two values, or the end. Eight bytes are tested at a time:
       an equal byte becomes zero, and the lowest mark of a zero byte is always right. */
    static inline const unsigned char *first_of(
        const unsigned char *p, const unsigned char *end, unsigned char one, unsigned char other
    ) {
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
        while (end - p >= 8) {
            uint64_t word, first, second;
            memcpy(&word, p, 8);
            first = word ^ ones * one;
            second = word ^ ones * other;
            first = ((first - ones) & ~first & tops) | ((second - ones) & ~second & tops);
            if (first) return p + (__builtin_ctzll(first) >> 3);
            p += 8;
        }
    #endif
        while (p < end && *p != one && *p != other) p++;
        return p;
    }
    """
    void fetch_soon(const void *) nogil
    Bytes first_of(Bytes, Bytes, unsigned char, unsigned char) nogil

# plain/match.py: Op.
cdef enum:
    PROPERTY
    PUSH
    AS_TRUTH
    NEGATE
    NOT
    IS_NULL
    EQUAL
    LESS
    LESS_EQUAL
    GREATER
    GREATER_EQUAL
    ONE_OF
    CONTAINS
    STARTS_WITH
    ENDS_WITH
    AND_THEN
    OR_ELSE
    AND
    OR

# Kinds of values, and the two other results of an evaluation.
cdef enum:
    UNKNOWN
    FALSE
    TRUE
    TEXT
    WHOLE
    REAL
    NOT_COMPARABLE
    UNDECIDED

# States of a text that is parsed as a number.
cdef enum:
    UNREAD
    READ
    NO_NUMBER
    UNREADABLE

cdef enum:
    MAX_DEPTH = 256
    LONG_DIGITS = 19
    # Limits within which one operation on doubles yields the exact result: the number of digits,
    # and the power of ten.
    EXACT_DIGITS = 15
    EXACT_POWER = 22
    REAL_MAX_BYTES = 63
    # Number of records to prefetch ahead.
    AHEAD = 6
    LINE_BYTES = 64

cdef long long LONG_MAX = 0x7FFFFFFFFFFFFFFF
cdef long long INT_MAX = 0x7FFFFFFF

cdef double POWERS[23]
POWERS[:] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
]


# A text and its cached numbers. A property with an empty text is missing.
cdef struct Slot:
    Span text
    int whole_state
    int real_state
    long long whole
    double real


# The operand is `number` (a slot, a number of texts, or the step to jump to), or the value `slot`
# of kind `kind`. `texts` are the texts of ONE_OF; `table` is the search table of CONTAINS.
cdef struct Step:
    int op
    int kind
    Py_ssize_t number
    Slot slot
    Span *texts
    Py_ssize_t *table


cdef struct Value:
    int kind
    Slot *slot


cdef inline int _order_of(Bytes p, Py_ssize_t size, Span *other) noexcept nogil:
    """Compare as memcmp does, but shorter texts come first."""
    if size != other.size:
        return -1 if size < other.size else 1
    if size and p[0] != other.at[0]:
        return -1 if p[0] < other.at[0] else 1
    return memcmp(p, other.at, size)


cdef Py_ssize_t _find(Bytes p, Py_ssize_t size, Span *texts, Py_ssize_t count) noexcept nogil:
    """Return the index of a text among ordered texts; -1 if it is none of them."""
    cdef Py_ssize_t low = 0, middle
    cdef int order
    while low < count:
        middle = low + (count - low) // 2
        order = _order_of(p, size, &texts[middle])
        if order == 0:
            return middle
        if order < 0:
            count = middle
        else:
            low = middle + 1
    return -1


cdef bint _is_inside(Span *text, Span *piece, Py_ssize_t *table) noexcept nogil:
    """Return whether a text contains a piece, in linear time (Knuth, Morris and Pratt)."""
    cdef Py_ssize_t n = 0, same = 0
    cdef Bytes found
    if piece.size == 0:
        return True
    while n < text.size:
        if same == 0:
            found = <Bytes>memchr(text.at + n, piece.at[0], text.size - n)
            if found == NULL:
                return False
            n = found - text.at
        while same and text.at[n] != piece.at[same]:
            same = table[same - 1]
        if text.at[n] == piece.at[same]:
            same += 1
            if same == piece.size:
                return True
        n += 1
    return False


cdef bint _read_whole(Slot *slot) noexcept nogil:
    """Parse a text as an integer, once; False unless it is one in the range of a Long."""
    cdef Bytes p = slot.text.at
    cdef Bytes end = p + slot.text.size
    cdef unsigned long long value = 0
    cdef bint is_negative
    if slot.whole_state == UNREAD:
        slot.whole_state = NO_NUMBER
        is_negative = p < end and p[0] == c'-'
        if p < end and (p[0] == c'-' or p[0] == c'+'):
            p += 1
        if p == end:
            return False
        while p < end and p[0] == c'0':
            p += 1
        if end - p > LONG_DIGITS:
            return False
        while p < end:
            if not c'0' <= p[0] <= c'9':
                return False
            value = value * 10 + (p[0] - c'0')
            p += 1
        if value > <unsigned long long>LONG_MAX + is_negative:
            return False
        slot.whole = <long long>(0 - value) if is_negative else <long long>value
        slot.whole_state = READ
    return slot.whole_state == READ


cdef int _read_real(Slot *slot) except -1:
    """Parse a text as Java's Double.valueOf does, once; return READ, NO_NUMBER or UNREADABLE."""
    cdef Bytes p = slot.text.at
    cdef Bytes end = p + slot.text.size
    cdef Bytes begin
    cdef bint is_negative = False, has_digits = False, is_large = False
    cdef int digits = 0, power = 0, more = 0, sign = 1
    cdef unsigned long long value = 0
    cdef char copy[REAL_MAX_BYTES + 1]
    if slot.real_state != UNREAD:
        return slot.real_state
    slot.real_state = NO_NUMBER
    while p < end and p[0] <= 0x20:
        p += 1
    while p < end and end[-1] <= 0x20:
        end -= 1
    if p < end and (
        end[-1] == c'f' or end[-1] == c'F' or end[-1] == c'd' or end[-1] == c'D'
    ):
        end -= 1
    begin = p
    if p < end and (p[0] == c'-' or p[0] == c'+'):
        is_negative = p[0] == c'-'
        p += 1
    if end - p == 3 and memcmp(p, b"NaN", 3) == 0:
        slot.real = INFINITY  # Java orders NaN above every number
        slot.real_state = READ
        return READ
    if end - p == 8 and memcmp(p, b"Infinity", 8) == 0:
        slot.real = -INFINITY if is_negative else INFINITY
        slot.real_state = READ
        return READ
    while p < end and c'0' <= p[0] <= c'9':
        has_digits = True
        if value or p[0] != c'0':
            digits += 1
            if digits <= EXACT_DIGITS:
                value = value * 10 + (p[0] - c'0')
        p += 1
    if p < end and p[0] == c'.':
        p += 1
        while p < end and c'0' <= p[0] <= c'9':
            has_digits = True
            if value or p[0] != c'0':
                digits += 1
            if digits <= EXACT_DIGITS:
                value = value * 10 + (p[0] - c'0')
                power -= 1
            p += 1
    if not has_digits:
        return NO_NUMBER
    if p < end and (p[0] == c'e' or p[0] == c'E'):
        p += 1
        if p < end and (p[0] == c'-' or p[0] == c'+'):
            sign = -1 if p[0] == c'-' else 1
            p += 1
        if p == end:
            return NO_NUMBER
        while p < end and c'0' <= p[0] <= c'9':
            if more > 10_000:
                is_large = True
            else:
                more = more * 10 + (p[0] - c'0')
            p += 1
    if p != end:
        return NO_NUMBER
    if end - begin > REAL_MAX_BYTES:
        slot.real_state = UNREADABLE
        return UNREADABLE
    power += sign * more
    if digits <= EXACT_DIGITS and not is_large and -EXACT_POWER <= power <= EXACT_POWER:
        slot.real = <double>value
        slot.real = slot.real * POWERS[power] if power >= 0 else slot.real / POWERS[-power]
        if is_negative:
            slot.real = -slot.real
    else:
        memcpy(copy, begin, end - begin)
        copy[end - begin] = 0
        slot.real = PyOS_string_to_double(copy, NULL, NULL)
    slot.real_state = READ
    return READ


ctypedef fused Number:
    double
    long long


cdef bint _holds(int op, Number left, Number right) noexcept nogil:
    if op == EQUAL:
        return left == right
    if op == LESS:
        return left < right
    if op == LESS_EQUAL:
        return left <= right
    if op == GREATER:
        return left > right
    return left >= right


cdef inline int _truth(bint is_true) noexcept nogil:
    return TRUE if is_true else FALSE


cdef bint _is_true_word(Span *text) noexcept nogil:
    """Return whether a text is `true`, in any case."""
    return (
        text.size == 4
        and text.at[0] | 32 == c't' and text.at[1] | 32 == c'r'
        and text.at[2] | 32 == c'u' and text.at[3] | 32 == c'e'
    )


cdef int _whole_beside(Value *value, long long beside, long long *found) noexcept nogil:
    """Store a value as an integer of the other side's type, Integer or Long.

    Returns WHOLE, or NOT_COMPARABLE if the text is no such number.
    """
    if value.kind == TEXT:
        if not _read_whole(value.slot):
            return NOT_COMPARABLE
        found[0] = value.slot.whole
        if -INT_MAX - 1 <= beside <= INT_MAX and not -INT_MAX - 1 <= found[0] <= INT_MAX:
            return NOT_COMPARABLE
    else:
        found[0] = value.slot.whole
    return WHOLE


cdef int _compare_numbers(int op, Value *left, Value *right) except -1:
    """Compare numbers, or texts with numbers or each other; at most one of them is a constant."""
    cdef long long one = 0, other = 0
    cdef int state
    if left.kind == WHOLE and right.kind == REAL or left.kind == REAL and right.kind == WHOLE:
        return UNDECIDED
    if left.kind == WHOLE or right.kind == WHOLE:
        if left.kind == WHOLE:
            one = left.slot.whole
            state = _whole_beside(right, one, &other)
        else:
            other = right.slot.whole
            state = _whole_beside(left, other, &one)
        return state if state == NOT_COMPARABLE else _truth(_holds(op, one, other))
    state = READ if left.kind == REAL else _read_real(left.slot)
    if state == READ and right.kind == TEXT:
        state = _read_real(right.slot)
    if state != READ:
        return NOT_COMPARABLE if state == NO_NUMBER else UNDECIDED
    return _truth(_holds(op, left.slot.real, right.slot.real))


cdef int _compare(int op, Value *left, Value *right) except -1:
    """Return the result of EQUAL, or of another comparison, for two values."""
    cdef Span *text
    if op == EQUAL:
        if left.kind == UNKNOWN:
            return TRUE if right.kind == UNKNOWN else UNKNOWN
        if right.kind == UNKNOWN:
            return FALSE
        if left.kind == TEXT and right.kind == TEXT:
            text = &left.slot.text
            return _truth(_order_of(text.at, text.size, &right.slot.text) == 0)
        if left.kind == TRUE or left.kind == FALSE:
            if right.kind == TEXT:
                return NOT_COMPARABLE
            return _truth(left.kind == right.kind)
        if right.kind == TRUE or right.kind == FALSE:
            if left.kind != TEXT:
                return FALSE
            return _truth(_is_true_word(&left.slot.text) == (right.kind == TRUE))
        return _compare_numbers(op, left, right)
    if left.kind == UNKNOWN or right.kind == UNKNOWN:
        return UNKNOWN
    if left.kind <= TRUE or right.kind <= TRUE:
        return NOT_COMPARABLE
    return _compare_numbers(op, left, right)


@final
cdef class Program:
    """A filter program; see plain/match.py.

    The texts of steps lie in the tuples of `definition`, those of slots in the evaluated
    properties. No Python code runs during an evaluation.
    """

    cdef readonly object definition
    cdef Slot *slots
    cdef Span *wanted
    cdef Py_ssize_t name_count
    cdef unsigned long long sizes
    cdef Step *steps
    cdef Py_ssize_t step_count
    cdef Value stack[MAX_DEPTH + 1]

    def __init__(self, code):
        if self.definition is not None:
            raise ValueError("a program is made once")
        self.definition = plain.Program(code)
        names, code = self.definition.names, self.definition.code
        # `wanted` points into the names that the steps keep alive.
        self.wanted = <Span *>calloc(len(names) + 1, sizeof(Span))
        self.slots = <Slot *>calloc(len(names) + 1, sizeof(Slot))
        self.steps = <Step *>calloc(len(code) + 1, sizeof(Step))
        if self.wanted == NULL or self.slots == NULL or self.steps == NULL:
            raise MemoryError
        for name in names:
            self._text(&self.wanted[self.name_count], name)
            self.sizes |= 1ULL << (self.wanted[self.name_count].size & 63)
            self.name_count += 1
        for op, operand in code:
            self._step(&self.steps[self.step_count], op, operand)
            self.step_count += 1

    def __dealloc__(self):
        cdef Py_ssize_t n
        if self.steps != NULL:
            # If the last step failed to build, it may own memory already.
            for n in range(self.step_count + 1):
                free(self.steps[n].texts)
                free(self.steps[n].table)
        free(self.steps)
        free(self.wanted)
        free(self.slots)

    @property
    def code(self):
        return self.definition.code

    cdef void _text(self, Span *text, bytes source) except *:
        text.at = <Bytes>PyBytes_AsString(source)
        text.size = PyBytes_Size(source)

    cdef void _step(self, Step *step, int op, operand) except *:
        cdef Py_ssize_t n, same
        cdef Span *text = &step.slot.text
        step.op = op
        if op == AND_THEN or op == OR_ELSE:
            step.number = operand
        elif op == PROPERTY:
            self._text(text, operand)
            step.number = _find(text.at, text.size, self.wanted, self.name_count)
        elif op == ONE_OF:
            step.number = len(operand)
            step.texts = <Span *>calloc(step.number + 1, sizeof(Span))
            if step.texts == NULL:
                raise MemoryError
            for n in range(step.number):
                self._text(&step.texts[n], operand[n])
        elif isinstance(operand, bytes):
            step.kind = TEXT
            self._text(text, operand)
            if op == CONTAINS:
                step.table = <Py_ssize_t *>calloc(text.size + 1, sizeof(Py_ssize_t))
                if step.table == NULL:
                    raise MemoryError
                same = 0
                for n in range(1, text.size):
                    while same and text.at[n] != text.at[same]:
                        same = step.table[same - 1]
                    if text.at[n] == text.at[same]:
                        same += 1
                    step.table[n] = same
        elif op == PUSH:
            if operand is None:
                step.kind = UNKNOWN
            elif isinstance(operand, bool):
                step.kind = TRUE if operand else FALSE
            elif isinstance(operand, int):
                step.kind = WHOLE
                step.slot.whole = operand
            else:
                step.kind = REAL
                step.slot.real = operand

    cdef void take(self, Bytes p, Py_ssize_t size) noexcept nogil:
        """Find the values of the names in a property text.

        If a name is repeated, its last non-empty value is used.
        """
        cdef Bytes end = p + size
        cdef Bytes name
        cdef Bytes value
        cdef Bytes stop
        cdef Py_ssize_t n
        cdef Slot *slot
        for n in range(self.name_count):
            slot = &self.slots[n]
            slot.text.size = 0
            slot.whole_state = slot.real_state = UNREAD
        while p < end:
            name = p
            p = first_of(p, end, 1, 2)
            if p == end:
                return
            p += 1
            if p[-1] == 2:
                continue
            value = p
            stop = first_of(value, end, 2, 2)
            p = stop
            if p < end:
                p += 1
            n = value - 1 - name
            if stop != value and self.sizes >> (n & 63) & 1:
                n = _find(name, n, self.wanted, self.name_count)
                if n >= 0:
                    self.slots[n].text.at = value
                    self.slots[n].text.size = stop - value

    cdef int run(self, Bytes p, Py_ssize_t size) except -1:
        """Run the steps for a message with these properties.

        Returns the kind of the result, NOT_COMPARABLE or UNDECIDED.
        """
        cdef Py_ssize_t at = 0
        cdef Step *step
        cdef Slot *slot
        cdef Value *top = self.stack
        cdef int found
        self.take(p, size)
        # `top` points to the top value; the lowest stack place stays unused.
        while at < self.step_count:
            step = &self.steps[at]
            at += 1
            if step.op == PROPERTY:
                top += 1
                slot = &self.slots[step.number]
                top.slot = slot
                top.kind = TEXT if slot.text.size else UNKNOWN
            elif step.op == PUSH:
                top += 1
                top.slot = &step.slot
                top.kind = step.kind
            elif step.op == AND_THEN:
                if top.kind == FALSE:
                    at = step.number
            elif step.op == OR_ELSE:
                if top.kind == TRUE:
                    at = step.number
            elif step.op == AND:
                top -= 1
                if top[1].kind != TRUE:
                    top[0] = top[1]
            elif step.op == OR:
                top -= 1
                if top[1].kind != FALSE:
                    top[0] = top[1]
            elif EQUAL <= step.op <= GREATER_EQUAL:
                top -= 1
                found = _compare(step.op, top, top + 1)
                if found >= NOT_COMPARABLE:
                    return found
                top.kind = found
            elif step.op == IS_NULL:
                top.kind = _truth(top.kind == UNKNOWN)
            elif top.kind == UNKNOWN:
                pass
            elif step.op == NOT:
                if top.kind > TRUE:
                    return UNDECIDED
                top.kind = FALSE if top.kind == TRUE else TRUE
            elif step.op == AS_TRUTH:
                top.kind = FALSE
            elif step.op == NEGATE:
                if top.kind > TEXT:
                    return UNDECIDED
                top.kind = UNKNOWN
            elif top.kind != TEXT:
                return UNDECIDED
            else:
                top.kind = _truth(_is_found(step, &top.slot.text))
        return top.kind

    cdef bint decide(self, Bytes p, Py_ssize_t size) except -1:
        """Return whether a message with these properties matches."""
        cdef int found = self.run(p, size)
        if found == UNDECIDED:
            return bool(self.definition.accepts(PyBytes_FromStringAndSize(<const char *>p, size)))
        return found == TRUE

    def accepts(self, properties):
        """Return whether a message with these property bytes matches; see plain/match.py."""
        cdef Py_buffer view
        PyObject_GetBuffer(properties, &view, PyBUF_SIMPLE)
        try:
            return self.decide(<Bytes>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)


cdef bint _is_found(Step *step, Span *text) noexcept nogil:
    """Return whether a text is one of several, or contains, starts with or ends with another."""
    cdef Span *piece = &step.slot.text
    if step.op == ONE_OF:
        return _find(text.at, text.size, step.texts, step.number) >= 0
    if piece.size > text.size:
        return False
    if step.op == STARTS_WITH:
        return memcmp(text.at, piece.at, piece.size) == 0
    if step.op == ENDS_WITH:
        return memcmp(text.at + text.size - piece.size, piece.at, piece.size) == 0
    return _is_inside(text, piece, step.table)


cdef long long _span_stop(
    Bytes p, Py_ssize_t count, long long low, long long high, Taken *first
) noexcept nogil:
    """Return the end of the span whose residency is checked together with the first record's."""
    cdef long long stop = first.place + first.size
    cdef Taken more
    cdef Py_ssize_t n
    for n in range(1, count):
        if not read_entry(p + n * ENTRY_BYTES, low, high, &more) or more.place < stop:
            break
        if more.place - stop > GAP_BYTES or more.place + more.size - first.place > SPAN_BYTES:
            break
        stop = more.place + more.size
    return stop


cdef inline void _fetch_soon(Bytes p, Py_ssize_t size) noexcept nogil:
    """Prefetch the head of a record, and its end, where its properties are."""
    fetch_soon(p)
    fetch_soon(p + LINE_BYTES)
    fetch_soon(p + size - 1)
    if size > 4 * LINE_BYTES:
        fetch_soon(p + size - LINE_BYTES)
        fetch_soon(p + size - 2 * LINE_BYTES)


@final
cdef class _Look:
    """Owner of the buffers of one call of match_records."""

    cdef Held held

    def __cinit__(self, entries, data):
        hold(&self.held, entries, data)

    def __dealloc__(self):
        let_go(&self.held)


def match_records(
    Program program not None, entries, long long offset, tuple most, tuple budget, tuple log,
    tuple queue, has_at_once,
):
    """Return the queue entries whose records match; see plain/match.py."""
    cdef _Look look
    cdef Py_ssize_t count_max, looked_max, count = 0, looked_at = 0, entry_count
    cdef long long bytes_max, properties_max, base, low, high, sure, total = 0, looked_bytes = 0
    cdef long long begin = 0, stop = 0
    cdef int queue_id = 0
    cdef bytes topic_tail = b""
    cdef bint is_proven = queue is None
    cdef Bytes p
    cdef Bytes records
    cdef Bytes record
    cdef Bytes properties
    cdef Bytes topic
    cdef unsigned char *chosen
    cdef Taken row, ahead
    cdef Parts parts
    cdef Py_ssize_t properties_bytes
    count_max, bytes_max = most
    looked_max, properties_max = budget
    data, base, low, high, sure = log
    look = _Look(entries, data)
    if base < 0 or low < base or high < 0 or high - base > look.held.data.len:
        raise ValueError("records between offsets that are not in the bytes of the log")
    if not is_proven:
        queue_id, topic_tail = queue
    topic = <Bytes>PyBytes_AsString(topic_tail)
    count_max = max(count_max, 1)
    entry_count = look.held.entries.len // ENTRY_BYTES
    p = <Bytes>look.held.entries.buf
    records = <Bytes>look.held.data.buf
    found = PyBytes_FromStringAndSize(NULL, min(count_max, entry_count) * ENTRY_BYTES)
    chosen = <unsigned char *>PyBytes_AsString(found)
    while looked_at < entry_count:
        if not read_entry(p, low, high, &row):
            break
        if row.place < sure:
            if not begin <= row.place <= stop - row.size:
                begin = row.place
                stop = _span_stop(p, entry_count - looked_at, low, high if high < sure else sure, &row)
                if not has_at_once(begin, stop):
                    break
        if (
            entry_count - looked_at > AHEAD
            and read_entry(p + AHEAD * ENTRY_BYTES, low, high, &ahead)
        ):
            _fetch_soon(records + (ahead.place - base), ahead.size)
        row.offset = offset + looked_at
        record = records + (row.place - base)
        if not is_proven and not is_record_of(
            record, high - row.place, &row, queue_id, topic, PyBytes_Size(topic_tail)
        ):
            break
        if not find_parts(record, row.size, &parts):
            break
        properties = record + parts.topic_end + 2
        properties_bytes = row.size - parts.topic_end - 2
        if program.decide(properties, properties_bytes):
            if count and total + row.size > bytes_max:
                break
            memcpy(chosen + count * ENTRY_BYTES, p, ENTRY_BYTES)
            count += 1
            total += row.size
        looked_at += 1
        looked_bytes += properties_bytes
        p += ENTRY_BYTES
        if count >= count_max or looked_at >= looked_max or looked_bytes >= properties_max:
            break
    return looked_at, looked_bytes, found[:count * ENTRY_BYTES]
