# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""A thread that syncs files, and needs no lock of the interpreter for it.

Compiled; plain/syncthread.py says what the methods do.
"""

import os

cdef extern from "Python.h":
    Py_ssize_t PyList_Size(object) except -1

cdef extern from *:
    """
    #include <stddef.h>
    #if defined(__linux__)
    #include <errno.h>
    #include <fcntl.h>
    #include <pthread.h>
    #include <signal.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <sys/eventfd.h>
    #include <unistd.h>
    typedef struct {
        pthread_t id;
        pthread_mutex_t lock;
        pthread_cond_t asked, settled;
        /* The request that the thread takes next: descriptors of its own, closed after the sync. */
        int *next;
        long long next_target;
        size_t next_count;
        int event, is_started, is_busy, stops, problem;
        long long target, count;
    } Syncer;

    static void drop_handles(int *handles, size_t count) {
        for (size_t n = 0; n < count; n++) close(handles[n]);
        free(handles);
    }
    static void *run_syncer(void *argument) {
        Syncer *s = argument;
        const uint64_t one = 1;
        pthread_mutex_lock(&s->lock);
        while (!s->stops) {
            if (!s->next) {
                pthread_cond_wait(&s->asked, &s->lock);
                continue;
            }
            int *handles = s->next, problem = 0;
            size_t count = s->next_count;
            long long target = s->next_target;
            s->next = NULL;
            s->is_busy = 1;
            pthread_mutex_unlock(&s->lock);
            for (size_t n = 0; n < count && !problem; n++)
                while (fdatasync(handles[n]) && (problem = errno) == EINTR) problem = 0;
            drop_handles(handles, count);
            pthread_mutex_lock(&s->lock);
            s->is_busy = 0;
            s->count++;
            if (problem) {
                /* The system reports a failure once: a later success would prove nothing. */
                s->problem = problem;
                s->stops = 1;
            } else {
                s->target = target;
            }
            if (write(s->event, &one, sizeof one) < 0) { /* It is readable already. */ }
            pthread_cond_broadcast(&s->settled);
        }
        pthread_cond_broadcast(&s->settled);
        pthread_mutex_unlock(&s->lock);
        return NULL;
    }
    static Syncer *open_syncer(void) {
        Syncer *s = calloc(1, sizeof *s);
        if (!s) return NULL;
        s->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (s->event < 0) {
            free(s);
            return NULL;
        }
        pthread_mutex_init(&s->lock, NULL);
        pthread_cond_init(&s->asked, NULL);
        pthread_cond_init(&s->settled, NULL);
        return s;
    }
    /* Copy the descriptors, so that callers may close theirs. Returns 0 or an error number. */
    static int ask_syncer(Syncer *s, const int *handles, size_t count, long long target) {
        int *copies = malloc((count + 1) * sizeof *copies), problem = 0;
        if (!copies) return ENOMEM;
        for (size_t n = 0; n < count; n++) {
            copies[n] = fcntl(handles[n], F_DUPFD_CLOEXEC, 0);
            if (copies[n] < 0) {
                problem = errno;
                drop_handles(copies, n);
                return problem;
            }
        }
        pthread_mutex_lock(&s->lock);
        if (!s->is_started) {
            /* Signals are for the thread that runs Python. */
            sigset_t all, before;
            sigfillset(&all);
            pthread_sigmask(SIG_SETMASK, &all, &before);
            problem = pthread_create(&s->id, NULL, run_syncer, s);
            pthread_sigmask(SIG_SETMASK, &before, NULL);
            s->is_started = !problem;
        }
        if (problem || s->stops) {
            pthread_mutex_unlock(&s->lock);
            drop_handles(copies, count);
            return problem;
        }
        if (s->next) drop_handles(s->next, s->next_count);
        s->next = copies;
        s->next_count = count;
        s->next_target = target;
        pthread_cond_signal(&s->asked);
        pthread_mutex_unlock(&s->lock);
        return 0;
    }
    static void wait_for_syncer(Syncer *s) {
        pthread_mutex_lock(&s->lock);
        while (!s->stops && (s->next || s->is_busy)) pthread_cond_wait(&s->settled, &s->lock);
        pthread_mutex_unlock(&s->lock);
    }
    static void take_from_syncer(Syncer *s, long long *target, long long *count, int *problem) {
        uint64_t events;
        if (s->event >= 0 && read(s->event, &events, sizeof events) < 0) { /* Nothing is new. */ }
        pthread_mutex_lock(&s->lock);
        *target = s->target;
        *count = s->count;
        *problem = s->problem;
        pthread_mutex_unlock(&s->lock);
    }
    static void stop_syncer(Syncer *s) {
        pthread_mutex_lock(&s->lock);
        s->stops = 1;
        pthread_cond_signal(&s->asked);
        pthread_mutex_unlock(&s->lock);
        if (s->is_started) pthread_join(s->id, NULL);
        s->is_started = 0;
        if (s->next) drop_handles(s->next, s->next_count);
        s->next = NULL;
        if (s->event >= 0) close(s->event);
        s->event = -1;
    }
    static void free_syncer(Syncer *s) {
        stop_syncer(s);
        pthread_mutex_destroy(&s->lock);
        pthread_cond_destroy(&s->asked);
        pthread_cond_destroy(&s->settled);
        free(s);
    }
    #else
    #include <errno.h>
    typedef struct { int event; } Syncer;
    static Syncer *open_syncer(void) { errno = ENOSYS; return NULL; }
    static int ask_syncer(Syncer *s, const int *h, size_t n, long long t) { return ENOSYS; }
    static void wait_for_syncer(Syncer *s) {}
    static void take_from_syncer(Syncer *s, long long *target, long long *count, int *problem) {}
    static void stop_syncer(Syncer *s) {}
    static void free_syncer(Syncer *s) {}
    #endif
    """
    ctypedef struct Syncer:
        int event
    Syncer *open_syncer() nogil
    int ask_syncer(Syncer *, const int *, size_t, long long) nogil
    void wait_for_syncer(Syncer *) nogil
    void take_from_syncer(Syncer *, long long *, long long *, int *) nogil
    void stop_syncer(Syncer *) nogil
    void free_syncer(Syncer *) nogil

cdef extern from "errno.h":
    int errno
    int E2BIG

cdef enum:
    HANDLES_MAX = 64


cdef class SyncThread:
    """A thread that syncs files; see plain/syncthread.py."""

    cdef Syncer *syncer

    def __cinit__(self):
        self.syncer = open_syncer()
        if self.syncer == NULL:
            raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        if self.syncer != NULL:
            with nogil:
                free_syncer(self.syncer)

    @property
    def event(self):
        """Descriptor that is readable once a sync has ended; -1 after `close`."""
        return self.syncer.event

    def begin(self, list handles not None, long long target):
        """Sync files, after the sync that runs; see plain/syncthread.py."""
        cdef int numbers[HANDLES_MAX]
        cdef Py_ssize_t n, count = PyList_Size(handles)
        cdef int problem
        if count > HANDLES_MAX:
            raise OSError(E2BIG, os.strerror(E2BIG))
        for n in range(count):
            numbers[n] = handles[n]
        problem = ask_syncer(self.syncer, numbers, count, target)
        if problem:
            raise OSError(problem, os.strerror(problem))

    def take(self):
        """Return what was synced; see plain/syncthread.py."""
        cdef long long target = 0, count = 0
        cdef int problem = 0
        take_from_syncer(self.syncer, &target, &count, &problem)
        return target, count, problem

    def wait(self):
        """Wait until nothing is left to sync."""
        with nogil:
            wait_for_syncer(self.syncer)

    def close(self):
        """Wait for the sync that runs, and end the thread; see plain/syncthread.py."""
        with nogil:
            stop_syncer(self.syncer)
