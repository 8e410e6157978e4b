//! How many replies packets can make us send.
