//! See [`fault_programs::Fault::Syscall`].
#![no_std]
#![no_main]
#![allow(unsafe_code)] // a program's entry

fault_programs::program!(1, Syscall);
