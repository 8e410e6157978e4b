//! Packets that are too big for the next link: answers, fragments, and TCP kept below it.
