/* A bare ROUTER that routes jobs as a broker does, without being one: the least that routing over libzmq costs.
 *
 *   cc -O2 router.c -lzmq -o router;  ./router tcp://127.0.0.1:PORT --curve
 *
 * It believes every frame, so it serves route.py and nobody else.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#define FRAMES_MAX 16
#define WORKERS_MAX 4096
#define NAME_MAX_BYTES 64

static void *router;
static zmq_msg_t frames[FRAMES_MAX];
static int frame_count;
static char worker_names[WORKERS_MAX][NAME_MAX_BYTES];
static size_t worker_lengths[WORKERS_MAX];
static int worker_count;
static unsigned next_worker;

static int is(int index, const char *text) {
    size_t length = strlen(text);
    return zmq_msg_size(&frames[index]) == length && memcmp(zmq_msg_data(&frames[index]), text, length) == 0;
}

static void send_bytes(const void *bytes, size_t length, int more) {
    zmq_send(router, bytes, length, more ? ZMQ_SNDMORE : 0);
}

static void send_text(const char *text) { send_bytes(text, strlen(text), 1); }

static void send_frame(int index, int more) {
    send_bytes(zmq_msg_data(&frames[index]), zmq_msg_size(&frames[index]), more);
}

/* Frames of a client: 0 name, 1 empty, 2 header, 3 command, 4 service, 5 target, 6 job, 7 body. */
static void answer_client(const char *command, const char *status, const char *body, size_t length) {
    send_frame(0, 1);
    send_text("");
    send_text("NFPB01");
    send_text(command);
    send_frame(4, 1);
    send_frame(6, 1);
    send_text(status);
    send_bytes(body, length, 0);
}

static void list_workers(void) {
    static char body[WORKERS_MAX * 24];
    char *end = body;
    *end++ = '[';
    for (int i = 0; i < worker_count; i++) end += sprintf(end, "%s{\"service\":\"raw\"}", i ? "," : "");
    *end++ = ']';
    answer_client("0x05", "200", body, end - body);
    answer_client("0x11", "200", body, end - body);
}

static void dispatch(void) {
    char body[256];
    int worker = next_worker++ % worker_count;
    int length = snprintf(body, sizeof body,
                          "{\"workers\":[\"fake-worker-0\"],\"uuid\":\"%.*s\",\"target\":\"any\","
                          "\"status\":\"DISPATCHED\",\"service\":\"raw\"}",
                          (int)zmq_msg_size(&frames[6]), (char *)zmq_msg_data(&frames[6]));
    answer_client("0x05", "202", body, length);
    send_bytes(worker_names[worker], worker_lengths[worker], 1);
    send_text("");
    send_text("NFPB01");
    send_text("0x04");
    send_frame(0, 1);
    send_text("");
    send_frame(6, 1);
    send_frame(7, 0);
}

/* Frames of a worker's result: 0 name, 1 empty, 2 header, 3 command, 4 client, 5 empty, 6 job, 7 status, 8 body. */
static void relay(void) {
    send_frame(4, 1);
    send_text("");
    send_text("NFPB01");
    send_text("0x05");
    send_text("raw");
    for (int i = 6; i < frame_count; i++) send_frame(i, i < frame_count - 1);
}

static void register_worker(void) {
    size_t length = zmq_msg_size(&frames[0]);
    if (worker_count == WORKERS_MAX || length > NAME_MAX_BYTES) return;
    memcpy(worker_names[worker_count], zmq_msg_data(&frames[0]), length);
    worker_lengths[worker_count++] = length;
}

int main(int argc, char **argv) {
    void *context = zmq_ctx_new();
    int high_water = 100000, on = 1;
    zmq_ctx_set(context, ZMQ_MAX_SOCKETS, WORKERS_MAX);
    router = zmq_socket(context, ZMQ_ROUTER);
    zmq_setsockopt(router, ZMQ_SNDHWM, &high_water, sizeof high_water);
    zmq_setsockopt(router, ZMQ_RCVHWM, &high_water, sizeof high_water);
    char public_key[41] = "", secret_key[41];
    if (argc > 2 && strcmp(argv[2], "--curve") == 0) {
        if (zmq_curve_keypair(public_key, secret_key) != 0) {
            fprintf(stderr, "this libzmq has no CURVE\n");
            return 1;
        }
        zmq_setsockopt(router, ZMQ_CURVE_SERVER, &on, sizeof on);
        zmq_setsockopt(router, ZMQ_CURVE_SECRETKEY, secret_key, sizeof secret_key);
    }
    if (argc < 2 || zmq_bind(router, argv[1]) != 0) {
        perror("bind");
        return 1;
    }
    printf("ready: router %s %s\n", *public_key ? public_key : "-", argv[1]);
    fflush(stdout);
    for (;;) {
        frame_count = 0;
        do {
            zmq_msg_init(&frames[frame_count]);
            if (zmq_msg_recv(&frames[frame_count], router, 0) < 0) return 1;
            frame_count++;
        } while (zmq_msg_more(&frames[frame_count - 1]) && frame_count < FRAMES_MAX);
        if (is(2, "NFPC01")) {
            if (is(3, "0x11")) list_workers();
            else dispatch();
        } else if (is(3, "0x05")) relay();
        else if (is(3, "0x01")) register_worker();
        for (int i = 0; i < frame_count; i++) zmq_msg_close(&frames[i]);
    }
}
