#!/bin/sh
# rustdoc, which takes nightly features here.
RUSTC_BOOTSTRAP=1 exec rustdoc "$@"
