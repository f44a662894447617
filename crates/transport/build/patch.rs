//! What is changed in the sources of libzmq 4.3.5 before they are compiled, and why.

/// One change: a text that the file has exactly once, and what stands there instead.
pub(crate) struct Patch {
    /// The name of a file in libzmq's `src`.
    pub(crate) file: &'static str,
    pub(crate) found: &'static str,
    put: &'static str,
}

/// A listener that could not accept for want of descriptors or memory waits before it is at it again.
macro_rules! pause {
    () => {
        r"
        if (accept_errno == EMFILE || accept_errno == ENFILE
            || accept_errno == ENOBUFS || accept_errno == ENOMEM)
            usleep (5000);
"
    };
}

/// Keeps what [`pause`] looks at, before other calls change it.
const fn keeps_accept_errno(file: &'static str) -> Patch {
    Patch {
        file,
        found: r"
    const fd_t fd = accept ();
",
        put: r"
    const fd_t fd = accept ();
    const int accept_errno = errno;
",
    }
}

/// Every change. What they keep from happening is tested in `tests/raw_peers.rs` and `tests/refusal.rs`, but for the pause of
/// listeners.
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
    // Without free descriptors a connection that waits cannot be accepted, and the listener is at it again at once: a peer that
    // held many connections open made the broker use up a core. It pauses in between; what is connected is served meanwhile,
    // some milliseconds later.
    Patch {
        file: "tcp_listener.cpp",
        found: r"
          make_unconnected_bind_endpoint_pair (_endpoint), zmq_errno ());
        return;
    }

    int rc = tune_tcp_socket (fd);
",
        put: concat!(
            "\n          make_unconnected_bind_endpoint_pair (_endpoint), zmq_errno ());",
            pause!(),
            "        return;\n    }\n\n    int rc = tune_tcp_socket (fd);\n"
        ),
    },
    keeps_accept_errno("tcp_listener.cpp"),
    keeps_accept_errno("ipc_listener.cpp"),
    Patch {
        file: "ipc_listener.cpp",
        found: r"
        return;
    }

    //  Create the engine object for this connection.
    create_engine (fd);
",
        put: concat!(
            pause!(),
            "        return;\n    }\n\n    //  Create the engine object for this connection.\n    create_engine (fd);\n"
        ),
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
    // A connection whose name another peer had taken was let go of and kept open, and once it said something more, nothing
    // was read from it any more, not even its end: two workers of one name used up all descriptors in hours. It is closed
    // now when what was on its way to it has left, ...
    Patch {
        file: "session_base.cpp",
        found: r"
        // If this is our current pipe, remove it
        _pipe = NULL;
        if (_has_linger_timer) {
",
        put: r"
        // If this is our current pipe, remove it
        _pipe = NULL;
        if (options.type == ZMQ_ROUTER && _engine && !_active && !_pending
            && !is_terminating ()) {
            _engine->terminate ();
            _engine = NULL;
            terminate ();
        }
        if (_has_linger_timer) {
",
    },
    // ... and until then what it says is read and thrown away, so that its end is seen, too, if nothing leaves any more. What
    // cannot be handed over although the queue is not full can never be.
    Patch {
        file: "session_base.cpp",
        found: r"
    errno = EAGAIN;
    return -1;
}

int zmq::session_base_t::read_zap_msg (msg_t *msg_)
",
        put: r"
    if (options.type == ZMQ_ROUTER && !_active
        && (!_pipe || _pipe->check_hwm ())) {
        int rc = msg_->close ();
        errno_assert (rc == 0);
        rc = msg_->init ();
        errno_assert (rc == 0);
        return 0;
    }

    errno = EAGAIN;
    return -1;
}

int zmq::session_base_t::read_zap_msg (msg_t *msg_)
",
    },
    // Names that begin with a zero byte are made here for peers without one, in a row. One that claimed the next of them ended
    // the process when it was given out. It is given another instead.
    Patch {
        file: "router.cpp",
        found: r"
        if (msg.size () == 0) {
            //  Fall back on the auto-generation
",
        put: r"
        if (msg.size () == 0
            || *static_cast<unsigned char *> (msg.data ()) == 0) {
            //  Fall back on the auto-generation
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
