//! See [`fault_programs::Fault::EndlessLoop`].
#![no_std]
#![no_main]
#![allow(unsafe_code)] // a program's entry

fault_programs::program!(0, EndlessLoop);
