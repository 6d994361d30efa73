/* The load program of `make bench-peers`: a client in C, so that the brokers are measured and not the client's language.
 *
 *     load NAME=VALUE …        settings of librdkafka; those that begin with "consumer." are of consumers only
 *
 * It reads one command a line from stdin, and answers each with one line of NAME=VALUE pairs:
 *
 *     produce TOPIC PARTITIONS RECORDS BYTES RATE WINDOW     RATE in records/s, 0: as fast as it goes;
 *                                                            WINDOW: records under way at most, 0: no limit
 *     consume TOPIC PARTITIONS RECORDS                       from the start, without a group; timed from the first record
 *     join TOPIC GROUPS RECORDS                              groups of one consumer, each of which will read RECORDS
 *     flow TOPIC PARTITIONS RECORDS BYTES RATE               produce at a rate while each group reads all of it
 *     leave                                                  the consumers leave their groups
 *
 * Times are in microseconds. The latency of a record runs from the moment at which the rate asks for it, so a client that
 * falls behind does not look fast. It is linked with the librdkafka inside the Python package confluent-kafka, which brings
 * no header: the declarations below are those parts of its public interface that are used here. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_topic_partition_list_s rd_kafka_topic_partition_list_t;
typedef struct {
    int err;
    rd_kafka_topic_t *topic;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *opaque;
} rd_kafka_message_t;

enum { PRODUCER = 0, CONSUMER = 1 };
enum { COPIED = 0x2, BLOCKING = 0x4 };

rd_kafka_conf_t *rd_kafka_conf_new(void);
int rd_kafka_conf_set(rd_kafka_conf_t *, const char *, const char *, char *, size_t);
void rd_kafka_conf_set_dr_msg_cb(rd_kafka_conf_t *, void (*)(rd_kafka_t *, const rd_kafka_message_t *, void *));
rd_kafka_t *rd_kafka_new(int, rd_kafka_conf_t *, char *, size_t);
void rd_kafka_destroy(rd_kafka_t *);
rd_kafka_topic_t *rd_kafka_topic_new(rd_kafka_t *, const char *, void *);
void rd_kafka_topic_destroy(rd_kafka_topic_t *);
int rd_kafka_produce(rd_kafka_topic_t *, int32_t, int, void *, size_t, const void *, size_t, void *);
int rd_kafka_poll(rd_kafka_t *, int);
int rd_kafka_flush(rd_kafka_t *, int);
int rd_kafka_poll_set_consumer(rd_kafka_t *);
rd_kafka_queue_t *rd_kafka_queue_get_consumer(rd_kafka_t *);
void rd_kafka_queue_destroy(rd_kafka_queue_t *);
ssize_t rd_kafka_consume_batch_queue(rd_kafka_queue_t *, int, rd_kafka_message_t **, size_t);
void rd_kafka_message_destroy(rd_kafka_message_t *);
int rd_kafka_consumer_close(rd_kafka_t *);
int rd_kafka_assign(rd_kafka_t *, const rd_kafka_topic_partition_list_t *);
int rd_kafka_assignment(rd_kafka_t *, rd_kafka_topic_partition_list_t **);
int rd_kafka_subscribe(rd_kafka_t *, const rd_kafka_topic_partition_list_t *);
rd_kafka_topic_partition_list_t *rd_kafka_topic_partition_list_new(int);
void rd_kafka_topic_partition_list_destroy(rd_kafka_topic_partition_list_t *);
void *rd_kafka_topic_partition_list_add(rd_kafka_topic_partition_list_t *, const char *, int32_t);
int rd_kafka_topic_partition_list_set_offset(rd_kafka_topic_partition_list_t *, const char *, int32_t, int64_t);
const char *rd_kafka_err2str(int);

static int settings_count;
static char **settings;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "load: %s: %s\n", what, why);
    exit(1);
}

static int64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static int64_t cpu_us(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000LL + used.ru_utime.tv_usec + used.ru_stime.tv_usec;
}

/* Latencies: counts in buckets that are at most 1/128 of their value wide. */

enum { STEPS = 256, HALF = STEPS / 2, BUCKETS = HALF * 58 };
typedef struct {
    int64_t counts[BUCKETS], count, max_us;
} Latencies;

static void note(Latencies *it, int64_t us) {
    int64_t value = us < 0 ? 0 : us;
    int power = value < STEPS ? 0 : 63 - __builtin_clzll(value) - 7;
    it->counts[power * HALF + (value >> power)]++;
    it->count++;
    if (value > it->max_us) it->max_us = value;
}

static int64_t percentile_us(const Latencies *it, double percent) {
    int64_t seen = 0, wanted = it->count * percent / 100;
    for (int bucket = 0; bucket < BUCKETS; bucket++) {
        seen += it->counts[bucket];
        if (seen <= wanted) continue;
        int power = bucket < STEPS ? 0 : bucket / HALF - 1;
        return (int64_t)(bucket - power * HALF) << power;
    }
    return it->max_us;
}

static void tell(const char *prefix, const Latencies *it) {
    printf(" %sp50_us=%ld %sp99_us=%ld %sp999_us=%ld %smax_us=%ld", prefix, (long)percentile_us(it, 50), prefix,
           (long)percentile_us(it, 99), prefix, (long)percentile_us(it, 99.9), prefix, (long)it->max_us);
}

/* Clients */

static rd_kafka_t *new_client(int kind, rd_kafka_conf_t *own) {
    char why[512];
    for (int i = 0; i < settings_count; i++) {
        char name[256], *equals = strchr(settings[i], '=');
        if (!equals) fail(settings[i], "is not NAME=VALUE");
        snprintf(name, sizeof name, "%.*s", (int)(equals - settings[i]), settings[i]);
        int is_of_consumers = strncmp(name, "consumer.", 9) == 0;
        if (is_of_consumers && kind == PRODUCER) continue;
        if (rd_kafka_conf_set(own, name + (is_of_consumers ? 9 : 0), equals + 1, why, sizeof why)) fail(settings[i], why);
    }
    rd_kafka_t *client = rd_kafka_new(kind, own, why, sizeof why);
    if (!client) fail("no client", why);
    return client;
}

static rd_kafka_conf_t *with(const char *name, const char *value) {
    char why[512];
    rd_kafka_conf_t *own = rd_kafka_conf_new();
    if (rd_kafka_conf_set(own, name, value, why, sizeof why)) fail(name, why);
    return own;
}

/* Producing */

static rd_kafka_t *producer;
static Latencies sent; /* of the records that a rate or a window times */
static volatile int64_t delivered, refused;

static void on_delivery(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
    (void)client, (void)opaque;
    if (message->err) {
        if (!refused) fprintf(stderr, "load: a record was refused: %s\n", rd_kafka_err2str(message->err));
        refused++;
    }
    if (message->opaque) note(&sent, now_us() - (int64_t)(intptr_t)message->opaque);
    __atomic_add_fetch(&delivered, 1, __ATOMIC_RELEASE);
}

static volatile int is_polled;

static void *poll_until_told(void *unused) {
    while (is_polled) rd_kafka_poll(producer, 1);
    return unused;
}

static void sleep_until(int64_t us) {
    struct timespec at = {us / 1000000, us % 1000000 * 1000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

enum { TICK_US = 1000 };

typedef struct {
    char topic[250];
    int partitions;
    int64_t records, bytes, rate, window;
} Work;

/* Sends the records of every millisecond together; the value begins with the time at which it was due. */
static int64_t send_at_rate(rd_kafka_topic_t *topic, const Work *work, char *value) {
    int64_t begun_us = now_us() + TICK_US, number = 0;
    for (int64_t tick = 0; number < work->records; tick++) {
        int64_t due_us = begun_us + tick * TICK_US, goal = work->rate * (tick + 1) / (1000000 / TICK_US);
        if (due_us > now_us()) sleep_until(due_us);
        memcpy(value, &due_us, sizeof due_us);
        for (; number < goal && number < work->records; number++)
            if (rd_kafka_produce(topic, number % work->partitions, COPIED | BLOCKING, value, work->bytes, NULL, 0,
                                 (void *)(intptr_t)due_us))
                fail("produce", "the record was not accepted");
    }
    return begun_us;
}

/* Sends as fast as it goes, with at most `window` records under way. */
static int64_t send_in_window(rd_kafka_topic_t *topic, const Work *work, char *value) {
    int64_t begun_us = now_us();
    for (int64_t number = 0; number < work->records; number++) {
        while (work->window && number - delivered >= work->window) rd_kafka_poll(producer, 1000);
        int64_t stamp = work->window ? now_us() : 0;
        if (rd_kafka_produce(topic, number % work->partitions, COPIED | BLOCKING, value, work->bytes, NULL, 0,
                             (void *)(intptr_t)stamp))
            fail("produce", "the record was not accepted");
    }
    return begun_us;
}

/* Sends all records and waits for their acknowledgements; returns the microseconds. */
static int64_t send_all(const Work *work) {
    pthread_t poller;
    char *value = calloc(1, work->bytes < 8 ? 8 : work->bytes);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(producer, work->topic, NULL);
    delivered = refused = 0;
    memset(&sent, 0, sizeof sent);
    is_polled = !work->window;
    if (is_polled) pthread_create(&poller, NULL, poll_until_told, NULL);
    int64_t begun_us = (work->rate ? send_at_rate : send_in_window)(topic, work, value);
    if (rd_kafka_flush(producer, 120000)) fail("produce", "not all records were acknowledged within 120 s");
    int64_t ended_us = now_us();
    if (is_polled) {
        is_polled = 0;
        pthread_join(poller, NULL);
    }
    rd_kafka_topic_destroy(topic);
    free(value);
    return ended_us - begun_us;
}

static void produce(const char *arguments) {
    Work work;
    if (sscanf(arguments, "%249s %d %ld %ld %ld %ld", work.topic, &work.partitions, &work.records, &work.bytes, &work.rate,
               &work.window) != 6)
        fail("produce", arguments);
    int64_t used_us = cpu_us(), took_us = send_all(&work);
    printf("wall_us=%ld cpu_us=%ld records=%ld refused=%ld", (long)took_us, (long)(cpu_us() - used_us), (long)delivered,
           (long)refused);
    if (work.rate || work.window) tell("", &sent);
}

/* Consuming */

enum { CHUNK = 10000, TIMED_CHUNK = 100, SILENCE_MS = 30000 };

typedef struct {
    pthread_t thread;
    rd_kafka_t *client;
    int64_t records, first_us; /* how many it reads, and when the first came */
    Latencies read;
} Reader;

/* Reads until it has all its records; the first bytes of each are the time at which it was due. */
static void read_all(Reader *it, int is_timed) {
    static __thread rd_kafka_message_t *chunk[CHUNK];
    int64_t most = is_timed ? TIMED_CHUNK : CHUNK; /* a timed record must not wait for the rest of its chunk */
    rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(it->client);
    for (int64_t left = it->records; left > 0;) {
        ssize_t count = rd_kafka_consume_batch_queue(queue, SILENCE_MS, chunk, left < most ? left : most);
        if (count <= 0) fail("consume", "nothing came for 30 s");
        if (!it->first_us) it->first_us = now_us();
        int64_t at_us = is_timed ? now_us() : 0, due_us;
        for (ssize_t i = 0; i < count; i++) {
            if (chunk[i]->err) fail("consume", rd_kafka_err2str(chunk[i]->err));
            if (is_timed) {
                memcpy(&due_us, chunk[i]->payload, sizeof due_us);
                note(&it->read, at_us - due_us);
            }
            rd_kafka_message_destroy(chunk[i]);
        }
        left -= count;
    }
    rd_kafka_queue_destroy(queue);
}

/* The client without a group, which stays connected between two commands. */
static rd_kafka_t *loner;

static void consume(const char *arguments) {
    Work work;
    if (sscanf(arguments, "%249s %d %ld", work.topic, &work.partitions, &work.records) != 3) fail("consume", arguments);
    int64_t used_us = cpu_us();
    if (!loner) {
        loner = new_client(CONSUMER, with("group.id", "unused"));
        rd_kafka_poll_set_consumer(loner);
    }
    Reader reader = {.client = loner, .records = work.records};
    rd_kafka_topic_partition_list_t *all = rd_kafka_topic_partition_list_new(work.partitions);
    for (int i = 0; i < work.partitions; i++) {
        rd_kafka_topic_partition_list_add(all, work.topic, i);
        rd_kafka_topic_partition_list_set_offset(all, work.topic, i, 0);
    }
    if (rd_kafka_assign(loner, all)) fail("consume", "assign");
    read_all(&reader, 0);
    int64_t took_us = now_us() - reader.first_us;
    printf("wall_us=%ld cpu_us=%ld records=%ld", (long)took_us, (long)(cpu_us() - used_us), (long)work.records);
    rd_kafka_topic_partition_list_destroy(all);
    rd_kafka_assign(loner, NULL);
}

/* A flow: a producer at a rate, and groups that read */

static void *read_timed(void *it) {
    read_all(it, 1);
    return it;
}

static int is_assigned(rd_kafka_t *client) {
    rd_kafka_topic_partition_list_t *now;
    int count = 0;
    if (!rd_kafka_assignment(client, &now)) {
        count = *(int *)now; /* its first field counts the partitions */
        rd_kafka_topic_partition_list_destroy(now);
    }
    return count > 0;
}

static Reader *readers;
static int groups;

static void begin_reading(Reader *it, const char *topic, int number, int64_t records) {
    char group[300];
    snprintf(group, sizeof group, "%s-%d", topic, number);
    rd_kafka_conf_t *own = with("group.id", group);
    char why[512];
    rd_kafka_conf_set(own, "auto.offset.reset", "earliest", why, sizeof why);
    it->client = new_client(CONSUMER, own);
    it->records = records;
    rd_kafka_poll_set_consumer(it->client);
    rd_kafka_topic_partition_list_t *wanted = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(wanted, topic, -1);
    if (rd_kafka_subscribe(it->client, wanted)) fail("join", "subscribe");
    rd_kafka_topic_partition_list_destroy(wanted);
    pthread_create(&it->thread, NULL, read_timed, it);
}

static void join(const char *arguments) {
    char topic[250];
    int64_t records;
    if (sscanf(arguments, "%249s %d %ld", topic, &groups, &records) != 3) fail("join", arguments);
    readers = calloc(groups, sizeof *readers);
    for (int i = 0; i < groups; i++) begin_reading(&readers[i], topic, i, records);
    for (int i = 0; i < groups; i++)
        while (!is_assigned(readers[i].client)) sleep_until(now_us() + 10000);
}

static void leave(const char *arguments) {
    (void)arguments;
    for (int i = 0; i < groups; i++) {
        rd_kafka_consumer_close(readers[i].client);
        rd_kafka_destroy(readers[i].client);
    }
    free(readers);
}

static void flow(const char *arguments) {
    Work work = {.window = 0};
    if (sscanf(arguments, "%249s %d %ld %ld %ld", work.topic, &work.partitions, &work.records, &work.bytes, &work.rate) != 5)
        fail("flow", arguments);
    int64_t used_us = cpu_us(), begun_us = now_us(), took_us = send_all(&work);
    Latencies all = {.count = 0};
    for (int i = 0; i < groups; i++) {
        pthread_join(readers[i].thread, NULL);
        for (int bucket = 0; bucket < BUCKETS; bucket++) all.counts[bucket] += readers[i].read.counts[bucket];
        all.count += readers[i].read.count;
        if (readers[i].read.max_us > all.max_us) all.max_us = readers[i].read.max_us;
    }
    printf("wall_us=%ld cpu_us=%ld records=%ld refused=%ld read_us=%ld", (long)took_us, (long)(cpu_us() - used_us),
           (long)delivered, (long)refused, (long)(now_us() - begun_us));
    tell("", &sent);
    tell("read_", &all);
}

static const struct {
    const char *name;
    void (*run)(const char *arguments);
} COMMANDS[] = {{"produce", produce}, {"consume", consume}, {"join", join}, {"flow", flow}, {"leave", leave}};

int main(int count, char **arguments) {
    char line[1024];
    settings_count = count - 1;
    settings = arguments + 1;
    rd_kafka_conf_t *own = rd_kafka_conf_new();
    rd_kafka_conf_set_dr_msg_cb(own, on_delivery);
    producer = new_client(PRODUCER, own);
    while (fgets(line, sizeof line, stdin)) {
        size_t length = strcspn(line, " \n"), i = 0, count_of_all = sizeof COMMANDS / sizeof *COMMANDS;
        while (i < count_of_all && (strlen(COMMANDS[i].name) != length || strncmp(COMMANDS[i].name, line, length))) i++;
        if (i == count_of_all) fail("unknown command", line);
        COMMANDS[i].run(line + length);
        printf("\n");
        fflush(stdout);
    }
    rd_kafka_destroy(producer);
    return 0;
}
