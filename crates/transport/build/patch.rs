//! What is changed in the sources of libzmq 4.3.5 before they are compiled, and why.

/// One change: a text that the file has exactly once, and what stands there instead.
pub(crate) struct Patch {
    /// The name of a file in libzmq's `src`.
    pub(crate) file: &'static str,
    pub(crate) found: &'static str,
    put: &'static str,
}

/// Every change. What each of them keeps from happening is tested in `tests/raw_peers.rs`.
pub(crate) const PATCHES: &[Patch] = &[
    // An answer to PING is sent while the input is worked off. Where that happens after the peer has broken off (its
    // messages waited for room in the queue meanwhile), this assertion ended the process: one peer could end a broker.
    Patch {
        file: "stream_engine_base.cpp",
        found: r"
void zmq::stream_engine_base_t::out_event ()
{
    zmq_assert (!_io_error);
",
        put: r"
void zmq::stream_engine_base_t::out_event ()
{
    if (unlikely (_io_error))
        return;
",
    },
    // A PING that is too short for its time to live was answered with 16 bytes of what happened to lie behind it.
    Patch {
        file: "zmtp_engine.cpp",
        found: r"
        uint16_t remote_heartbeat_ttl;
",
        put: r"
        uint16_t remote_heartbeat_ttl;

        if (unlikely (msg_->size () < ping_ttl_len))
            return -1;
",
    },
    // Nobody looked whether a command was refused, so that a peer could send malformed ones for ever.
    Patch {
        file: "stream_engine_base.cpp",
        found: r"
    if (msg_->flags () & msg_t::command) {
        process_command_message (msg_);
    }
",
        put: r"
    if ((msg_->flags () & msg_t::command)
        && process_command_message (msg_) == -1) {
        errno = EPROTO;
        return -1;
    }
",
    },
];

/// The text of a file of libzmq as it is compiled; `None` where it is compiled as it is.
///
/// # Errors
/// If a text to be replaced is not there exactly once: these are not the sources that the changes were written for.
pub(crate) fn patched(file: &str, text: &str) -> Result<Option<String>, String> {
    let mut patches = PATCHES.iter().filter(|patch| patch.file == file).peekable();
    if patches.peek().is_none() {
        return Ok(None);
    }
    patches
        .try_fold(text.to_owned(), |text, patch| match text.matches(patch.found).count() {
            1 => Ok(text.replacen(patch.found, patch.put, 1)),
            count => Err(format!(
                "libzmq's {file} has this text {count} times instead of once, so that it cannot be changed as \
                 build/patch.rs wants it; compare the version of zeromq-src with 4.3.5:\n{}",
                patch.found
            )),
        })
        .map(Some)
}
