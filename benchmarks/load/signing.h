/* Signatures of an account (AclClientRPCHook): HMAC-SHA1 over the values of all ext fields in the
 * order of their names, and the body, in base64. The headers of load.c have their fields in that
 * order already, and AccessKey comes before all of them. SHA-1 is OpenSSL's, loaded when it is
 * needed, so that building needs no headers of it.
 */
#include <dlfcn.h>

enum { SHA1_BYTES = 20, SHA1_STATE_BYTES = 256, KEY_BLOCK_BYTES = 64, SIGNED_MAX = 1 << 20 };

static const char *access_key; /* NULL: requests are not signed */
static int (*sha1_init)(void *), (*sha1_update)(void *, const void *, size_t);
static int (*sha1_final)(unsigned char *, void *);
static char inner_state[SHA1_STATE_BYTES], outer_state[SHA1_STATE_BYTES];
static char signed_content[SIGNED_MAX];

static void start_key(char *state, const char *secret, int mark) {
    unsigned char block[KEY_BLOCK_BYTES];
    size_t length = strlen(secret);
    if (length > sizeof block) die("a secret longer than 64 bytes");
    for (size_t n = 0; n < sizeof block; n++) block[n] = mark ^ (n < length ? secret[n] : 0);
    sha1_init(state);
    sha1_update(state, block, sizeof block);
}

/* Sign from now on, as the account "KEY:SECRET". */
static void sign_as(char *account) {
    void *library = dlopen("libcrypto.so.3", RTLD_NOW);
    char *secret = strchr(account, ':');
    if (!library) die("no libcrypto.so.3: signing needs it");
    if (!secret) die("sign=KEY:SECRET");
    *secret++ = 0;
    *(void **)&sha1_init = dlsym(library, "SHA1_Init");
    *(void **)&sha1_update = dlsym(library, "SHA1_Update");
    *(void **)&sha1_final = dlsym(library, "SHA1_Final");
    if (!sha1_init || !sha1_update || !sha1_final) die("libcrypto.so.3 has no SHA-1");
    start_key(inner_state, secret, 0x36);
    start_key(outer_state, secret, 0x5C);
    access_key = account;
}

/* Copy the values of the fields at `p`, without escapes of the form \u00XX. Return their size. */
static size_t copy_values(char *out, const char *p) {
    char *at = out;
    while (*p == '"') {
        p = strchr(p + 1, '"') + 3; /* behind "name":" */
        while (*p != '"') {
            if (*p == '\\') {
                *at++ = (char)strtol((char[]){p[4], p[5], 0}, NULL, 16);
                p += 6;
            } else {
                *at++ = *p++;
            }
        }
        if (*++p == ',') p++;
    }
    return at - out;
}

static void put_base64(char *out, const unsigned char *digest) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned char padded[SHA1_BYTES + 1] = {0};
    memcpy(padded, digest, SHA1_BYTES);
    for (int n = 0; n < SHA1_BYTES + 1; n += 3, out += 4) {
        unsigned value = padded[n] << 16 | padded[n + 1] << 8 | padded[n + 2];
        for (int k = 0; k < 4; k++) out[k] = digits[value >> (18 - 6 * k) & 63];
    }
    out[-1] = '=';
}

/* Add the fields of a signature to a header, which its body follows. Return the bytes added. */
static size_t sign_request(char *header, size_t header_bytes, size_t body_bytes) {
    char state[SHA1_STATE_BYTES], added[256], base64[28];
    unsigned char digest[SHA1_BYTES];
    char *fields = memmem(header, header_bytes, "\"extFields\":{", 13);
    if (!fields) die("a header without fields");
    fields += 13;
    if (header_bytes + body_bytes > SIGNED_MAX) die("too much to sign");
    size_t size = copy_values(signed_content, fields);
    memcpy(signed_content + size, header + header_bytes, body_bytes);
    memcpy(state, inner_state, sizeof state);
    sha1_update(state, access_key, strlen(access_key));
    sha1_update(state, signed_content, size + body_bytes);
    sha1_final(digest, state);
    memcpy(state, outer_state, sizeof state);
    sha1_update(state, digest, sizeof digest);
    sha1_final(digest, state);
    put_base64(base64, digest);
    size_t more = snprintf(added, sizeof added, "\"AccessKey\":\"%.64s\",\"Signature\":\"%.28s\",",
                           access_key, base64);
    memmove(fields + more, fields, header + header_bytes + body_bytes - fields);
    memcpy(fields, added, more);
    return more;
}
