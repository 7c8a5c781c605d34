# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Columns of records in the format of Arrow arrays.

Compiled; plain/columns.py is the definition. The bytes are not trusted: `is_whole` checks the parts
of each record when a RecordColumns is created. It keeps the bytes and is immutable, so later reads
at these positions stay within the record. All output goes through an `_Out`, and `reserve` ensures
its capacity.
"""

cimport cython
from cpython.buffer cimport PyObject_GetBuffer, PyBuffer_Release, PyBUF_SIMPLE
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

from cometmq.speedups.compiled.checksums cimport (
    look_at_processor, make_crc_tables, stored_crc,
)
from cometmq.speedups.compiled.octets cimport Bytes, be32, be64
from cometmq.speedups.compiled.properties cimport Named, find_named, forget
from cometmq.speedups.compiled.records cimport (
    BORN_V6, FIXED_BYTES, HEAD_BYTES, Parts, STORE_V6, V6_MORE_BYTES, is_whole,
)
from cometmq.speedups.compiled.texts cimport Span, character

from cometmq.speedups.plain.columns import Maps, Texts, address
from cometmq.speedups.plain.properties import pairs_of

cdef extern from "Python.h":
    object PyBytes_FromStringAndSize(const char *, Py_ssize_t)
    char *PyBytes_AsString(object) except NULL

make_crc_tables()
look_at_processor()

cdef enum:
    BYTES_MAX = 0x7FFFFFFF
    CRC_POSITION = 8
    OFFSET_POSITION = 28
    FLAGS_POSITION = 36
    BORN_HOST_POSITION = 48
    STORE_MS_POSITION = 56
    STORE_HOST_POSITION = 64
    TIMES_POSITION = 72
    HOST_BYTES = 8
    # Maximum length of an IPv4 address with its port.
    ADDRESS_BYTES = 26
    # Maximum size of the UTF-8 text that replaces one invalid byte.
    REPLACED_BYTES = 3
    # Maximum number of names of one record that are compared here; Python handles more.
    NAMES_MAX = 64
    USUAL_PAIRS = 6
    BAD_CRC = 1
    BAD_TOPIC = 2
    BAD_TEXT = 4
    BAD_PAIR = 8

cdef const char *DIGITS = b"0123456789ABCDEF"

cdef enum Kind:
    TOPIC
    KEYS
    TAGS
    MSG_ID
    BORN_HOST
    STORE_HOST

cdef dict KINDS = {
    "topic": TOPIC, "keys": KEYS, "tags": TAGS, "msg_id": MSG_ID, "born_host": BORN_HOST,
    "store_host": STORE_HOST,
}


cdef struct Place:
    int at
    int size
    int body
    int body_end
    int topic
    int topic_end
    int born_extra
    int store_extra


cdef struct Part:
    int at
    int size


cdef struct Values:
    Part unique
    Part keys
    Part tag


cdef bint _is_utf8(Bytes p, Py_ssize_t size) noexcept nogil:
    cdef Bytes end = p + size
    cdef unsigned int point
    cdef unsigned long long word
    cdef Py_ssize_t step
    while p < end:
        if end - p >= 8:
            memcpy(&word, p, 8)
            if not word & 0x8080808080808080ULL:
                p += 8
                continue
        if p[0] < 0x80:
            p += 1
            continue
        step = character(p, end, &point)
        # U+FFFD can also be encoded in the text itself.
        if point == 0xFFFD and not (step == 3 and p[0] == 0xEF and p[1] == 0xBF and p[2] == 0xBD):
            return False
        p += step
    return True


@cython.final
cdef class _Out:
    """Growing output buffer."""

    cdef bytes data
    cdef unsigned char *begin
    cdef Py_ssize_t used
    cdef Py_ssize_t capacity

    def __cinit__(self, Py_ssize_t capacity):
        self.data = PyBytes_FromStringAndSize(NULL, capacity)
        self.begin = <unsigned char *>PyBytes_AsString(self.data)
        self.capacity = capacity

    cdef int reserve(self, Py_ssize_t more) except -1:
        """Ensure room for `more` further bytes."""
        cdef bytes longer
        cdef Py_ssize_t wanted
        if more > self.capacity - self.used:
            wanted = max(self.capacity * 2, self.used + more)
            longer = PyBytes_FromStringAndSize(NULL, wanted)
            memcpy(PyBytes_AsString(longer), self.begin, self.used)
            self.data = longer
            self.begin = <unsigned char *>PyBytes_AsString(longer)
            self.capacity = wanted
        return 0

    cdef int put(self, Bytes p, Py_ssize_t size) except -1:
        self.reserve(size)
        memcpy(self.begin + self.used, p, size)
        self.used += size
        return 0

    cdef int put_text(self, Bytes p, Py_ssize_t size) except -1:
        """Write text; invalid UTF-8 is replaced."""
        cdef Bytes end = p + size
        cdef unsigned int point
        cdef Py_ssize_t step
        if _is_utf8(p, size):
            return self.put(p, size)
        self.reserve(size * REPLACED_BYTES)
        while p < end:
            step = 1
            point = p[0]
            if point >= 0x80:
                step = character(p, end, &point)
            if point == 0xFFFD:
                memcpy(self.begin + self.used, b"\xef\xbf\xbd", 3)
                self.used += 3
            else:
                memcpy(self.begin + self.used, p, step)
                self.used += step
            p += step
        return 0

    cdef object taken(self):
        """Return the bytes written."""
        return self.data if self.used == self.capacity else memoryview(self.data)[:self.used]


@cython.final
cdef class _Texts:
    """An array of texts, built row by row; only the first `rows_known` rows can be null."""

    cdef _Out values
    cdef _Out offsets
    cdef bytes validity
    cdef unsigned char *bits
    cdef Py_ssize_t rows_known
    cdef Py_ssize_t rows
    cdef Py_ssize_t nulls

    def __cinit__(self, Py_ssize_t rows_known, Py_ssize_t bytes_at_first):
        self.values = _Out(bytes_at_first)
        self.offsets = _Out((rows_known + 1) * sizeof(int))
        self.rows = -1
        self.rows_known = rows_known
        self.end_row()

    cdef int end_row(self) except -1:
        """End a row, which consists of the bytes written since the last one."""
        cdef int end = <int>self.values.used
        if self.values.used > BYTES_MAX:
            raise OverflowError("2 GiB or more in a column")
        self.rows += 1
        return self.offsets.put(<Bytes>&end, sizeof(int))

    cdef int end_of(self, Py_ssize_t row) noexcept:
        return (<int *>self.offsets.begin)[row + 1]

    cdef void cut(self, Py_ssize_t rows) noexcept:
        """Discard all rows after the first `rows`."""
        self.rows = rows
        self.values.used = self.end_of(rows - 1)
        self.offsets.used = (rows + 1) * sizeof(int)

    cdef int end_null(self) except -1:
        """End a row as null."""
        cdef Py_ssize_t size = (self.rows_known + 7) // 8
        if self.rows == self.rows_known:
            raise IndexError("more rows than there were to be")
        if self.bits == NULL:
            self.validity = PyBytes_FromStringAndSize(NULL, size)
            self.bits = <unsigned char *>PyBytes_AsString(self.validity)
            memset(self.bits, 0xFF, size)
            if self.rows_known % 8:
                self.bits[size - 1] = (1 << self.rows_known % 8) - 1
        self.bits[self.rows // 8] &= ~(1 << self.rows % 8)
        self.nulls += 1
        return self.end_row()

    cdef object taken(self):
        # NamedTuple's own constructor is Python.
        return tuple.__new__(Texts, (
            self.validity, self.nulls, self.offsets.taken(), self.values.taken(),
        ))


@cython.final
cdef class RecordColumns:
    """Immutable set of the valid records in a buffer; see plain/columns.py."""

    cdef bytes _data
    cdef Bytes _begin
    cdef Py_ssize_t _size
    cdef Place *_places
    cdef Values *_values
    cdef Py_ssize_t _count
    cdef readonly Py_ssize_t stop

    def __init__(self, bytes data not None, starts=None, base=None):
        cdef Py_buffer buffer
        cdef Py_ssize_t count, row
        cdef const char *numbers
        cdef long long at = 0
        cdef bint has_base = base is not None
        cdef unsigned long long first = <unsigned long long><long long>base if has_base else 0
        if self._data is not None:
            raise TypeError("made already")
        if len(data) > BYTES_MAX:
            raise ValueError("2 GiB or more at once")
        self._data = data
        self._begin = <Bytes>PyBytes_AsString(data)
        self._size = len(data)
        if starts is None:
            self._make_room(len(data) // FIXED_BYTES)
            while at < self._size and self._add(at, has_base, first):
                at = self.stop
            self._make_room(self._count)
            return
        PyObject_GetBuffer(starts, &buffer, PyBUF_SIMPLE)
        try:
            count = buffer.len // sizeof(long long)
            if count * <Py_ssize_t>sizeof(long long) != buffer.len:
                raise TypeError("starts are int64")
            self._make_room(count)
            numbers = <const char *>buffer.buf
            for row in range(count):
                memcpy(&at, numbers + row * sizeof(long long), sizeof(long long))
                if not 0 <= at <= len(data):
                    raise ValueError("a record outside the data")
                self.stop = at
                if not self._add(at, has_base, first):
                    break
        finally:
            PyBuffer_Release(&buffer)

    def __dealloc__(self):
        free(self._places)
        free(self._values)

    cdef int _make_room(self, Py_ssize_t count) except -1:
        """Resize the array to `count` records and one more, which `_add` may write to."""
        cdef void *found = realloc(self._places, (count + 1) * sizeof(Place))
        if found == NULL:
            raise MemoryError
        self._places = <Place *>found
        return 0

    cdef bint _add(self, Py_ssize_t at, bint has_base, unsigned long long base) noexcept:
        """Add the record at a position, for which there is room; False if it is not valid."""
        cdef Parts found
        cdef Bytes p = self._begin + at
        cdef Place *place = &self._places[self._count]
        cdef unsigned int flags
        if not is_whole(p, self._size - at, &found):
            return False
        if has_base and be64(p + OFFSET_POSITION) != <long long>(base + <unsigned long long>at):
            return False
        flags = be32(p + FLAGS_POSITION)
        place.at = <int>at
        place.size = <int>be32(p)
        place.body = <int>(at + found.body)
        place.body_end = <int>(at + found.body_end)
        place.topic = <int>(at + found.topic)
        place.topic_end = <int>(at + found.topic_end)
        place.born_extra = V6_MORE_BYTES if flags & BORN_V6 else 0
        place.store_extra = V6_MORE_BYTES if flags & STORE_V6 else 0
        self._count += 1
        self.stop = at + place.size
        return True

    def __len__(self):
        return self._count

    def keep(self, flags):
        """Return the records whose flag is not 0; see plain/columns.py."""
        cdef Py_buffer buffer
        cdef Py_ssize_t row
        cdef RecordColumns kept = RecordColumns.__new__(RecordColumns)
        kept._data = self._data
        kept._begin = self._begin
        kept.stop = self.stop
        PyObject_GetBuffer(flags, &buffer, PyBUF_SIMPLE)
        try:
            if buffer.len != self._count:
                raise ValueError("another number of flags than of records")
            kept._make_room(self._count)
            for row in range(self._count):
                kept._places[kept._count] = self._places[row]
                kept._count += (<Bytes>buffer.buf)[row] != 0
        finally:
            PyBuffer_Release(&buffer)
        return kept

    def places(self):
        """Return the positions of the parts of each record; see plain/columns.py."""
        cdef bytes found = PyBytes_FromStringAndSize(NULL, self._count * 6 * sizeof(long long))
        cdef long long *out = <long long *>PyBytes_AsString(found)
        cdef Place *place
        cdef Py_ssize_t row
        for row in range(self._count):
            place = &self._places[row]
            out[0] = place.at
            out[1] = place.size
            out[2] = place.body
            out[3] = place.body_end
            out[4] = place.topic
            out[5] = place.topic_end
            out += 6
        return found

    def numbers(self, int position, int width):
        """Return a number of each record's head; see plain/columns.py."""
        if width not in (4, 8) or not 0 <= position <= HEAD_BYTES - width:
            raise ValueError("no number of a head")
        cdef bytes found = PyBytes_FromStringAndSize(NULL, self._count * width)
        cdef char *out = PyBytes_AsString(found)
        cdef Py_ssize_t row
        for row in range(self._count):
            if width == 4:
                (<int *>out)[row] = <int>be32(self._of(row, position))
            else:
                (<long long *>out)[row] = be64(self._of(row, position))
        return found

    cdef Bytes _of(self, Py_ssize_t row, int position) noexcept:
        """Return a pointer to a head field, given its position in a head with IPv4 hosts."""
        cdef Place *place = &self._places[row]
        cdef Bytes p = self._begin + place.at + position
        if position >= STORE_MS_POSITION:
            p += place.born_extra
        if position >= TIMES_POSITION:
            p += place.store_extra
        return p

    def texts(self, str name not None):
        """Return one text for each record; see plain/columns.py."""
        cdef int kind = KINDS.get(name, -1)
        cdef Py_ssize_t row
        cdef _Texts found
        cdef Part *part
        cdef Place *place
        if kind < 0:
            raise ValueError(f"no text {name!r}")
        if kind == TOPIC:
            found = _Texts(self._count, self._sum_of(kind))
            for row in range(self._count):
                place = &self._places[row]
                found.values.put_text(self._begin + place.topic, place.topic_end - place.topic)
                found.end_row()
        elif kind == BORN_HOST or kind == STORE_HOST:
            found = _Texts(self._count, self._count * ADDRESS_BYTES)
            for row in range(self._count):
                self._put_host(found, row, kind)
        else:
            self._find_values()
            found = _Texts(self._count, self._sum_of(kind))
            for row in range(self._count):
                part = self._part(row, kind)
                if part.size:
                    found.values.put_text(self._begin + part.at, part.size)
                    found.end_row()
                elif kind == MSG_ID:
                    self._put_offset_id(found.values, row)
                    found.end_row()
                else:
                    found.end_null()
        return found.taken()

    cdef Py_ssize_t _sum_of(self, int kind) noexcept:
        """Return the total size of the stored texts of a kind."""
        cdef Py_ssize_t total = 0, row
        for row in range(self._count):
            if kind == TOPIC:
                total += self._places[row].topic_end - self._places[row].topic
            else:
                total += self._part(row, kind).size
        return total

    cdef Part *_part(self, Py_ssize_t row, int kind) noexcept:
        if kind == KEYS:
            return &self._values[row].keys
        return &self._values[row].tag if kind == TAGS else &self._values[row].unique

    cdef int _find_values(self) except -1:
        """Find the property values that have a column, once for all records."""
        cdef Py_ssize_t row
        cdef Named named
        cdef Values *values
        cdef Place *place
        if self._values != NULL:
            return 0
        self._values = <Values *>malloc((self._count + 1) * sizeof(Values))
        if self._values == NULL:
            raise MemoryError
        for row in range(self._count):
            place = &self._places[row]
            forget(&named)
            find_named(
                self._begin + place.topic_end + 2, self._begin + place.at + place.size, &named
            )
            values = &self._values[row]
            self._note(&values.unique, &named.unique)
            self._note(&values.keys, &named.keys)
            self._note(&values.tag, &named.tag)
        return 0

    cdef void _note(self, Part *part, Span *found) noexcept:
        part.size = <int>found.size
        part.at = <int>(found.at - self._begin) if found.size else 0

    cdef int _put_host(self, _Texts found, Py_ssize_t row, int kind) except -1:
        """Write an address; most rows repeat that of the previous row."""
        cdef Place *place = &self._places[row]
        cdef int extra = place.born_extra if kind == BORN_HOST else place.store_extra
        cdef int position = BORN_HOST_POSITION if kind == BORN_HOST else STORE_HOST_POSITION
        cdef Bytes host = self._of(row, position)
        cdef Place *last = place - 1
        cdef int begin, size
        cdef bytes text
        if row and (last.born_extra if kind == BORN_HOST else last.store_extra) == extra:
            if memcmp(self._of(row - 1, position), host, HOST_BYTES + extra) == 0:
                begin = found.end_of(row - 2)
                size = found.end_of(row - 1) - begin
                found.values.reserve(size)
                found.values.put(found.values.begin + begin, size)
                return found.end_row()
        if extra:
            text = address(<bytes>host[:HOST_BYTES + extra]).encode()
            found.values.put(<Bytes>PyBytes_AsString(text), len(text))
        else:
            found.values.reserve(ADDRESS_BYTES)
            for n in range(4):
                _put_number(found.values, host[n])
                found.values.begin[found.values.used] = c'.' if n < 3 else c':'
                found.values.used += 1
            _put_number(found.values, be32(host + 4))
        return found.end_row()

    cdef int _put_offset_id(self, _Out out, Py_ssize_t row) except -1:
        cdef int host_bytes = HOST_BYTES + self._places[row].store_extra
        cdef Bytes host = self._of(row, STORE_HOST_POSITION)
        out.reserve(2 * (host_bytes + 8))
        _put_hex(out, host, host_bytes)
        _put_hex(out, self._of(row, OFFSET_POSITION), 8)
        return 0

    def bodies(self):
        """Return the bodies as stored."""
        cdef Py_ssize_t row, total = 0
        cdef Place *place
        for row in range(self._count):
            total += self._places[row].body_end - self._places[row].body
        cdef _Texts found = _Texts(self._count, total)
        for row in range(self._count):
            place = &self._places[row]
            found.values.put(self._begin + place.body, place.body_end - place.body)
            found.end_row()
        return found.taken()

    def maps(self):
        """Return the properties as maps; see plain/columns.py."""
        cdef Py_ssize_t row, total = 0
        cdef Place *place
        for row in range(self._count):
            place = &self._places[row]
            total += place.at + place.size - place.topic_end - 2
        # First estimate: most records have few properties, and values are longer than names. The
        # arrays grow if needed.
        cdef _Texts names = _Texts(self._count * USUAL_PAIRS, total // 2)
        cdef _Texts values = _Texts(self._count * USUAL_PAIRS, total - total // 4)
        cdef bytes offsets = PyBytes_FromStringAndSize(NULL, (self._count + 1) * sizeof(int))
        cdef int *ends = <int *>PyBytes_AsString(offsets)
        ends[0] = 0
        for row in range(self._count):
            place = &self._places[row]
            _put_pairs(
                names, values, self._begin + place.topic_end + 2,
                self._begin + place.at + place.size,
            )
            ends[row + 1] = <int>names.rows
        return tuple.__new__(Maps, (offsets, names.taken(), values.taken()))

    def faults(self, *, bint crcs, bint texts):
        """Return the rows with faults, and their faults; see plain/columns.py."""
        cdef list found = []
        cdef Py_ssize_t row
        cdef Place *place
        cdef unsigned int crc
        cdef int fault
        for row in range(self._count):
            place = &self._places[row]
            fault = 0
            if crcs:
                crc = be32(self._begin + place.at + CRC_POSITION)
                if crc and crc != stored_crc(
                    self._begin + place.body, place.body_end - place.body
                ):
                    fault = BAD_CRC
            if texts:
                if not _is_utf8(self._begin + place.topic, place.topic_end - place.topic):
                    fault |= BAD_TOPIC
                fault |= _text_faults(
                    self._begin + place.topic_end + 2, self._begin + place.at + place.size
                )
            if fault:
                found.append((row, fault))
        return found


cdef void _put_number(_Out out, unsigned int number) noexcept:
    """Write a number, for which room is reserved."""
    cdef unsigned char digits[10]
    cdef int at = 10
    while True:
        at -= 1
        digits[at] = c'0' + number % 10
        number //= 10
        if not number:
            break
    memcpy(out.begin + out.used, digits + at, 10 - at)
    out.used += 10 - at


cdef void _put_hex(_Out out, Bytes p, int size) noexcept:
    """Write bytes as hexadecimal digits, for which room is reserved."""
    cdef int n
    for n in range(size):
        out.begin[out.used] = DIGITS[p[n] >> 4]
        out.begin[out.used + 1] = DIGITS[p[n] & 15]
        out.used += 2


cdef int _put_pairs(_Texts names, _Texts values, Bytes p, Bytes end) except -1:
    """Write the pairs of a property text.

    If a name is repeated, or invalid UTF-8 could make two names equal, Python parses the pairs.
    """
    cdef Span seen[NAMES_MAX]
    cdef Py_ssize_t count = 0, n
    cdef Bytes begin = p
    cdef Bytes stop
    cdef Bytes middle
    cdef bint is_plain = _is_utf8(p, end - p)
    cdef Py_ssize_t rows = names.rows
    while p < end and is_plain:
        stop = <Bytes>memchr(p, 2, end - p)
        if stop == NULL:
            stop = end
        middle = <Bytes>memchr(p, 1, stop - p)
        if middle != NULL and middle > p and middle + 1 < stop:
            for n in range(count):
                if seen[n].size == middle - p and memcmp(seen[n].at, p, middle - p) == 0:
                    is_plain = False
            if count == NAMES_MAX:
                is_plain = False
            if not is_plain:
                break
            seen[count].at = p
            seen[count].size = middle - p
            count += 1
            names.values.put(p, middle - p)
            names.end_row()
            values.values.put(middle + 1, stop - middle - 1)
            values.end_row()
        p = stop + 1
    if is_plain:
        return 0
    names.cut(rows)
    values.cut(rows)
    for name, value in pairs_of(<bytes>begin[:end - begin]).items():
        _put_str(names, name)
        _put_str(values, value)
    return 0


cdef int _put_str(_Texts found, str text) except -1:
    cdef bytes raw = text.encode()
    found.values.put(<Bytes>PyBytes_AsString(raw), len(raw))
    return found.end_row()


cdef int _text_faults(Bytes p, Bytes end) noexcept:
    """Return the faults of a property text."""
    cdef int fault = 0 if _is_utf8(p, end - p) else BAD_TEXT
    cdef Bytes stop
    while p < end:
        stop = <Bytes>memchr(p, 2, end - p)
        if stop == NULL:
            stop = end
        if stop > p and (p[0] == 1 or memchr(p, 1, stop - p) == NULL):
            return fault | BAD_PAIR
        p = stop + 1
    return fault
