//! Golden bytes of every message, so that a change of the encoding is a change someone made on purpose.
