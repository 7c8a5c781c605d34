# cython: language_level=3
"""Prefetching of memory that no CPU cache has, so that many loads overlap."""

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define prefetch(place) __builtin_prefetch(place)
    #else
    #define prefetch(place) ((void)(place))
    #endif
    """
    #: Start to load a line of memory. Any address is allowed, also a wrong one or NULL.
    void prefetch(const void *) nogil
