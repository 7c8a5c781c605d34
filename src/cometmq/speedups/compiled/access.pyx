# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Access to a server by signed requests: which requests are certainly allowed.

Compiled; plain/access.py is the definition. `write_content` collects what a request signed;
`AccessCache.prove` then computes the signatures of several requests at once.
"""

import hashlib

from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy

from cometmq.speedups.compiled.headers cimport ASCII, ESCAPED, AllFields, note_field
from cometmq.speedups.compiled.octets cimport Bytes, put32, put64
from cometmq.speedups.compiled.sha1 cimport (
    BLOCK_BYTES, Signing, SigningKey, is_base64_of, look_for_lanes, make_key, pad_text,
    padded_blocks, restrict_to, sign_all,
)
from cometmq.speedups.compiled.texts cimport Span, is_text, is_utf8

cdef extern from "Python.h":
    object PyBytes_FromStringAndSize(const char *, Py_ssize_t)
    object PyUnicode_DecodeUTF8(const char *, Py_ssize_t, const char *)
    char *PyBytes_AsString(object) except NULL
    Py_ssize_t PyBytes_Size(object) except -1
    Py_ssize_t PySet_Size(object) except -1
    void *PyDict_GetItemWithError(object, object) except? NULL

look_for_lanes()

cdef enum:
    # Limits; see plain/access.py.
    SIGNED_MAX_BYTES = 65536
    NAMES_MAX_BYTES = 1024
    DECISIONS_MAX = 4096
    #: Size of the code and of the topic's length in the key of a decision.
    KEY_HEAD_BYTES = 12
    SIGNATURE_BYTES = 28
    #: Values up to this size are copied in one step.
    STEP_BYTES = 16


cdef void write_content(
    Claims *claims, int row, Span *escaped, Bytes body, Py_ssize_t body_bytes
) noexcept nogil:
    """Write what a request signed behind the contents that `claims` already holds.

    `escaped` replaces a value with escapes. The header precedes the body in memory.
    """
    cdef AllFields *fields = &claims.fields
    cdef Claim *claim = &claims.rows[row]
    cdef Span *name
    cdef Span *text
    cdef unsigned char *out
    cdef void *grown
    cdef Bytes end = body + body_bytes
    cdef Py_ssize_t size = body_bytes, wanted
    cdef int n, field, unsigned = -1
    claim.access_key.size = claim.signature.size = 0
    claim.size = -1
    for field in range(fields.count):
        name = &fields.names[field]
        text = &fields.texts[field]
        if name.size == 9:
            if memcmp(name.at, b"Signature", 9) == 0:
                claim.signature = text[0]
                unsigned = field
                continue
            if memcmp(name.at, b"AccessKey", 9) == 0:
                claim.access_key = text[0]
        size += escaped.size if fields.kinds[field] == ESCAPED else text.size
    if not claim.access_key.size or size > SIGNED_MAX_BYTES:
        return
    wanted = claims.used + size + 2 * BLOCK_BYTES + STEP_BYTES
    if wanted > claims.capacity:
        grown = realloc(claims.content, 2 * wanted)
        if grown == NULL:
            return
        claims.content = <unsigned char *>grown
        claims.capacity = 2 * wanted
    out = claims.content + claims.used
    for n in range(fields.count):
        field = fields.order[n]
        if field == unsigned:
            continue
        text = escaped if fields.kinds[field] == ESCAPED else &fields.texts[field]
        if text.size <= STEP_BYTES and text != escaped and end - text.at >= STEP_BYTES:
            memcpy(out, text.at, STEP_BYTES)
        else:
            memcpy(out, text.at, text.size)
        out += text.size
    memcpy(out, body, body_bytes)
    claim.at = claims.used
    claim.size = size
    pad_text(claims.content + claim.at, size)
    claims.used += padded_blocks(size) * BLOCK_BYTES


cdef class _Account:
    """An account, and the requests that it may send; see plain/access.py."""

    cdef str name
    cdef bint must_sign
    cdef SigningKey key
    cdef set allowed
    # The last request that was found in the set.
    cdef bytes last

    def __init__(self, str name not None, bytes secret not None):
        self.name = name
        self.must_sign = len(secret) > 0
        self.allowed = set()
        self.last = b""
        if len(secret) > BLOCK_BYTES:
            secret = hashlib.sha1(secret).digest()
        make_key(&self.key, <Bytes>PyBytes_AsString(secret), PyBytes_Size(secret))


cdef class AccessCache:
    """Decisions about signed requests; see plain/access.py."""

    def __cinit__(self):
        self.claims = <Claims *>calloc(1, sizeof(Claims))
        if self.claims == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.claims != NULL:
            free(self.claims.content)
            free(self.claims)

    def __init__(self, secret_of, allows):
        self.secret_of = secret_of
        self.allows = allows
        self.accounts = {}

    cdef int prove(self, int count) except -1:
        """Decide for the first `count` claims whether their account is known and signed them."""
        cdef Signing rows[CLAIMS_MAX]
        cdef int owners[CLAIMS_MAX]
        cdef int n, signing = 0
        cdef Claim *claim
        cdef Span *text
        cdef void *account = NULL
        cdef Span *of_account = NULL
        for n in range(count):
            claim = &self.claims.rows[n]
            claim.is_right = False
            text = &claim.access_key
            if not text.size:
                continue
            if of_account == NULL or not is_text(of_account, <const char *>text.at, text.size):
                account = self.find_account(text)
                of_account = text
            if account == NULL:
                continue
            claim.account = account
            if not (<_Account>account).must_sign:
                claim.is_right = True
                continue
            if claim.size < 0 or claim.signature.size != SIGNATURE_BYTES:
                continue
            rows[signing].key = &(<_Account>account).key
            rows[signing].text = self.claims.content + claim.at
            rows[signing].blocks = padded_blocks(claim.size)
            owners[signing] = n
            signing += 1
        sign_all(rows, signing)
        for n in range(signing):
            claim = &self.claims.rows[owners[n]]
            claim.is_right = is_base64_of(rows[n].digest, claim.signature.at)
        return 0

    cdef void *find_account(self, Span *access_key) except? NULL:
        """Return an account, borrowed from the dict; NULL if there is none."""
        cdef void *found
        name = PyBytes_FromStringAndSize(<const char *>access_key.at, access_key.size)
        found = PyDict_GetItemWithError(self.accounts, name)
        if found != NULL:
            return found
        text = PyUnicode_DecodeUTF8(<const char *>access_key.at, access_key.size, NULL)
        secret = self.secret_of(text)
        if secret is None:
            return NULL
        account = self.accounts[name] = _Account(text, secret)
        return <void *>account

    cdef int is_allowed(self, Claim *claim, long long code, Span *topic, Span *group) except -1:
        """Return whether the account of a claim that is right may send such a request."""
        cdef unsigned char key[KEY_HEAD_BYTES + NAMES_MAX_BYTES]
        cdef _Account account = <_Account>claim.account
        cdef Py_ssize_t size = KEY_HEAD_BYTES + topic.size + group.size
        if topic.size + group.size > NAMES_MAX_BYTES:
            return False
        put64(key, code)
        put32(key + 8, <unsigned int>topic.size)
        memcpy(key + KEY_HEAD_BYTES, topic.at, topic.size)
        memcpy(key + KEY_HEAD_BYTES + topic.size, group.at, group.size)
        if PyBytes_Size(account.last) == size:
            if memcmp(PyBytes_AsString(account.last), key, size) == 0:
                return True
        request = PyBytes_FromStringAndSize(<const char *>key, size)
        if request not in account.allowed:
            if not is_utf8(topic.at, topic.at + topic.size):
                return False
            if not is_utf8(group.at, group.at + group.size):
                return False
            if not self.allows(
                account.name, code,
                PyUnicode_DecodeUTF8(<const char *>topic.at, topic.size, NULL),
                PyUnicode_DecodeUTF8(<const char *>group.at, group.size, NULL),
            ):
                return False
            if PySet_Size(account.allowed) >= DECISIONS_MAX:
                account.allowed.clear()
            account.allowed.add(request)
        account.last = request
        return True

    def permits(self, long long code, fields, bytes body not None, bytes topic not None,
                bytes group not None):
        """Decide about a request alone, for tests; see plain/access.py."""
        cdef Claim *claim = &self.claims.rows[0]
        cdef Span named[2]
        cdef Span name, text
        cdef Bytes p
        cdef Bytes v
        cdef bytes data
        if fields is None:
            return False
        # The body stands behind the fields, as in a frame.
        data = b"".join([*fields, *fields.values(), body])
        p = v = <Bytes>PyBytes_AsString(data)
        for each in fields:
            v += PyBytes_Size(each)
        self.claims.fields.count = 0
        for each in fields:
            name.at, name.size = p, len(each)
            text.at, text.size = v, len(fields[each])
            note_field(&self.claims.fields, &name, &text, ASCII)
            p += name.size
            v += text.size
        self.claims.used = 0
        write_content(self.claims, 0, NULL, v, len(body))
        self.prove(1)
        named[0].at, named[0].size = <Bytes>PyBytes_AsString(topic), len(topic)
        named[1].at, named[1].size = <Bytes>PyBytes_AsString(group), len(group)
        return claim.is_right and bool(self.is_allowed(claim, code, &named[0], &named[1]))


def use_hardware(bint sha, int lanes):
    """Use only such hardware from now on, for tests; return whether this processor has it."""
    return restrict_to(sha, lanes)
