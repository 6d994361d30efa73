"""The configuration keys of the fast server, of fetch sessions and of quotas. A pure module."""

from minibroker.metadata.config_keys import INT, INT_MAX, STRING, at_least, broker_key, one_of

FETCH_TRANSFER = broker_key(
    "minibroker.fetch.transfer",
    STRING,
    "mmap",
    one_of("copy", "sendfile", "mmap"),
    "How the records of a large fetch reach the socket: copied through the memory of this process, sent by the kernel "
    "from the page cache, or written from pages of the file that are mapped into this process.",
)

# Fetch sessions -------------------------------------------------------------------------------------------------------

FETCH_SESSION_CACHE_SLOTS = broker_key(
    "max.incremental.fetch.session.cache.slots",
    INT,
    1000,
    at_least(0),
    "The most fetch sessions at a time. A client without a session names all its partitions in every fetch.",
)

# Quotas ---------------------------------------------------------------------------------------------------------------

QUOTA_WINDOW_NUM = broker_key(
    "quota.window.num", INT, 11, at_least(1), "How many samples are kept to measure the rates of clients."
)
QUOTA_WINDOW_SIZE_SECONDS = broker_key(
    "quota.window.size.seconds", INT, 1, at_least(1), "The length of a sample of quota.window.num."
)
CONTROLLER_QUOTA_WINDOW_NUM = broker_key(
    "controller.quota.window.num",
    INT,
    11,
    at_least(1),
    "A burst of topic changes may use the quota of this many samples at once.",
)
CONTROLLER_QUOTA_WINDOW_SIZE_SECONDS = broker_key(
    "controller.quota.window.size.seconds",
    INT,
    1,
    at_least(1),
    "The length of a sample of controller.quota.window.num.",
)

# Connections ----------------------------------------------------------------------------------------------------------

MAX_CONNECTION_CREATION_RATE = broker_key(
    "max.connection.creation.rate",
    INT,
    INT_MAX,
    at_least(1),
    "The most new connections in a second. Further connections wait before they are served.",
    is_dynamic=True,
)
