//! The part of the C interfaces of libzmq 4.3.5 and libsodium that this crate uses, declared by hand.
//!
//! Nothing here is public: `message.rs`, `socket.rs`, `context.rs` and `keys.rs` wrap it into safe types.
#![allow(unsafe_code)]
#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_int, c_void};

// The build script of libsodium-sys-stable compiles and links libsodium; naming the crate keeps it in the link.
use libsodium_sys as _;

/// A message as libzmq stores it: opaque, 64 bytes, aligned as a pointer. It may be moved in memory (it holds no pointer to
/// itself) but must not be copied.
#[repr(C, align(8))]
pub(crate) struct zmq_msg_t {
    opaque: [u8; 64],
}

/// Releases a buffer that was lent with `zmq_msg_init_data`. Called from any thread.
pub(crate) type zmq_free_fn = unsafe extern "C" fn(data: *mut c_void, hint: *mut c_void);

// Socket types.
pub(crate) const ZMQ_PAIR: c_int = 0;
pub(crate) const ZMQ_REP: c_int = 4;
pub(crate) const ZMQ_DEALER: c_int = 5;
pub(crate) const ZMQ_ROUTER: c_int = 6;

// Options of a context.
pub(crate) const ZMQ_IO_THREADS: c_int = 1;
pub(crate) const ZMQ_MAX_SOCKETS: c_int = 2;

// Options of a socket.
pub(crate) const ZMQ_ROUTING_ID: c_int = 5;
pub(crate) const ZMQ_FD: c_int = 14;
pub(crate) const ZMQ_EVENTS: c_int = 15;
pub(crate) const ZMQ_LINGER: c_int = 17;
pub(crate) const ZMQ_RECONNECT_IVL: c_int = 18;
pub(crate) const ZMQ_BACKLOG: c_int = 19;
pub(crate) const ZMQ_MAXMSGSIZE: c_int = 22;
pub(crate) const ZMQ_SNDHWM: c_int = 23;
pub(crate) const ZMQ_RCVHWM: c_int = 24;
pub(crate) const ZMQ_LAST_ENDPOINT: c_int = 32;
pub(crate) const ZMQ_ROUTER_MANDATORY: c_int = 33;
pub(crate) const ZMQ_TCP_KEEPALIVE: c_int = 34;
pub(crate) const ZMQ_TCP_KEEPALIVE_CNT: c_int = 35;
pub(crate) const ZMQ_TCP_KEEPALIVE_IDLE: c_int = 36;
pub(crate) const ZMQ_TCP_KEEPALIVE_INTVL: c_int = 37;
pub(crate) const ZMQ_IPV6: c_int = 42;
pub(crate) const ZMQ_CURVE_SERVER: c_int = 47;
pub(crate) const ZMQ_CURVE_PUBLICKEY: c_int = 48;
pub(crate) const ZMQ_CURVE_SECRETKEY: c_int = 49;
pub(crate) const ZMQ_CURVE_SERVERKEY: c_int = 50;
pub(crate) const ZMQ_ZAP_DOMAIN: c_int = 55;
pub(crate) const ZMQ_ROUTER_HANDOVER: c_int = 56;
pub(crate) const ZMQ_HANDSHAKE_IVL: c_int = 66;
pub(crate) const ZMQ_CONNECT_TIMEOUT: c_int = 79;
pub(crate) const ZMQ_TCP_MAXRT: c_int = 80;
pub(crate) const ZMQ_HICCUP_MSG: c_int = 114;

// Flags of send and receive, and events.
pub(crate) const ZMQ_DONTWAIT: c_int = 1;
pub(crate) const ZMQ_SNDMORE: c_int = 2;
pub(crate) const ZMQ_POLLIN: c_int = 1;
pub(crate) const ZMQ_POLLOUT: c_int = 2;

// Events of a socket monitor.
pub(crate) const ZMQ_EVENT_CONNECT_RETRIED: c_int = 0x0004;
pub(crate) const ZMQ_EVENT_CLOSED: c_int = 0x0080;
pub(crate) const ZMQ_EVENT_DISCONNECTED: c_int = 0x0200;
pub(crate) const ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL: c_int = 0x0800;
pub(crate) const ZMQ_EVENT_HANDSHAKE_SUCCEEDED: c_int = 0x1000;
pub(crate) const ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL: c_int = 0x2000;
pub(crate) const ZMQ_EVENT_HANDSHAKE_FAILED_AUTH: c_int = 0x4000;

/// The detail of a `HANDSHAKE_FAILED_PROTOCOL` event when one side encrypts and the other does not.
pub(crate) const ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH: u32 = 0x1100_0002;
/// The detail of a `HANDSHAKE_FAILED_PROTOCOL` event when a box could not be opened.
pub(crate) const ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC: u32 = 0x1100_0001;

unsafe extern "C" {
    pub(crate) fn zmq_errno() -> c_int;
    pub(crate) fn zmq_strerror(errnum: c_int) -> *const c_char;
    pub(crate) fn zmq_version(major: *mut c_int, minor: *mut c_int, patch: *mut c_int);
    pub(crate) fn zmq_has(capability: *const c_char) -> c_int;

    pub(crate) fn zmq_ctx_new() -> *mut c_void;
    pub(crate) fn zmq_ctx_set(context: *mut c_void, option: c_int, optval: c_int) -> c_int;
    pub(crate) fn zmq_ctx_term(context: *mut c_void) -> c_int;

    pub(crate) fn zmq_socket(context: *mut c_void, kind: c_int) -> *mut c_void;
    pub(crate) fn zmq_close(socket: *mut c_void) -> c_int;
    pub(crate) fn zmq_setsockopt(socket: *mut c_void, option: c_int, value: *const c_void, len: usize) -> c_int;
    pub(crate) fn zmq_getsockopt(socket: *mut c_void, option: c_int, value: *mut c_void, len: *mut usize) -> c_int;
    pub(crate) fn zmq_bind(socket: *mut c_void, endpoint: *const c_char) -> c_int;
    pub(crate) fn zmq_connect(socket: *mut c_void, endpoint: *const c_char) -> c_int;
    pub(crate) fn zmq_socket_monitor(socket: *mut c_void, endpoint: *const c_char, events: c_int) -> c_int;

    pub(crate) fn zmq_send(socket: *mut c_void, data: *const c_void, len: usize, flags: c_int) -> c_int;
    pub(crate) fn zmq_msg_init(message: *mut zmq_msg_t) -> c_int;
    pub(crate) fn zmq_msg_init_data(
        message: *mut zmq_msg_t,
        data: *mut c_void,
        len: usize,
        free: Option<zmq_free_fn>,
        hint: *mut c_void,
    ) -> c_int;
    pub(crate) fn zmq_msg_send(message: *mut zmq_msg_t, socket: *mut c_void, flags: c_int) -> c_int;
    pub(crate) fn zmq_msg_recv(message: *mut zmq_msg_t, socket: *mut c_void, flags: c_int) -> c_int;
    pub(crate) fn zmq_msg_close(message: *mut zmq_msg_t) -> c_int;
    pub(crate) fn zmq_msg_data(message: *mut zmq_msg_t) -> *mut c_void;
    pub(crate) fn zmq_msg_size(message: *const zmq_msg_t) -> usize;
    pub(crate) fn zmq_msg_more(message: *const zmq_msg_t) -> c_int;

    pub(crate) fn zmq_curve_keypair(public: *mut c_char, secret: *mut c_char) -> c_int;
    pub(crate) fn zmq_curve_public(public: *mut c_char, secret: *const c_char) -> c_int;
    pub(crate) fn zmq_z85_encode(text: *mut c_char, data: *const u8, len: usize) -> *mut c_char;
    pub(crate) fn zmq_z85_decode(data: *mut u8, text: *const c_char) -> *mut u8;

    // libsodium.
    pub(crate) fn crypto_hash_sha256(digest: *mut u8, data: *const u8, len: u64) -> c_int;
    pub(crate) fn sodium_memzero(data: *mut c_void, len: usize);
}
