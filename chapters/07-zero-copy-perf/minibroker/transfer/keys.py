"""The configuration keys of the fast server. A pure module."""

from minibroker.metadata.config_keys import STRING, broker_key, one_of

FETCH_TRANSFER = broker_key(
    "minibroker.fetch.transfer",
    STRING,
    "mmap",
    one_of("copy", "sendfile", "mmap"),
    "How the records of a large fetch reach the socket: copied through the memory of this process, sent by the kernel "
    "from the page cache, or written from pages of the file that are mapped into this process.",
)
