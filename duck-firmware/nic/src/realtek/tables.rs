//! Analogue settings of the 8125B (chip 0x641), as its vendor's driver writes them. What they mean is not published.
//!
//! The values are taken from the DPDK project, `drivers/net/r8169/base/rtl8125b.c`, under this licence:
//!
//! SPDX-License-Identifier: BSD-3-Clause.
//! Copyright(c) 2024 Realtek Corporation. All rights reserved
//!
//! Redistribution and use in source and binary forms, with or without modification, are permitted provided that the following
//! conditions are met:
//!
//! 1. Redistributions of source code must retain the above copyright notice, this list of conditions and the following
//!    disclaimer.
//! 2. Redistributions in binary form must reproduce the above copyright notice, this list of conditions and the following
//!    disclaimer in the documentation and/or other materials provided with the distribution.
//! 3. Neither the name of the copyright holder nor the names of its contributors may be used to endorse or promote products
//!    derived from this software without specific prior written permission.
//!
//! THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS "AS IS" AND ANY EXPRESS OR IMPLIED WARRANTIES, INCLUDING,
//! BUT NOT LIMITED TO, THE IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS FOR A PARTICULAR PURPOSE ARE DISCLAIMED. IN NO EVENT
//! SHALL THE COPYRIGHT HOLDER OR CONTRIBUTORS BE LIABLE FOR ANY DIRECT, INDIRECT, INCIDENTAL, SPECIAL, EXEMPLARY, OR
//! CONSEQUENTIAL DAMAGES (INCLUDING, BUT NOT LIMITED TO, PROCUREMENT OF SUBSTITUTE GOODS OR SERVICES; LOSS OF USE, DATA, OR
//! PROFITS; OR BUSINESS INTERRUPTION) HOWEVER CAUSED AND ON ANY THEORY OF LIABILITY, WHETHER IN CONTRACT, STRICT LIABILITY, OR
//! TORT (INCLUDING NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY OUT OF THE USE OF THIS SOFTWARE, EVEN IF ADVISED OF THE
//! POSSIBILITY OF SUCH DAMAGE.

/// Registers of the PCIe PHY and their values.
pub(super) const EPHY_8125B: [(u8, u16); 10] = [
    (0x0b, 0xa908),
    (0x1e, 0x20eb),
    (0x22, 0x0023),
    (0x02, 0x60c2),
    (0x29, 0xff00),
    (0x4b, 0xa908),
    (0x5e, 0x28eb),
    (0x62, 0x0023),
    (0x42, 0x60c2),
    (0x69, 0xff00),
];

/// A change of the PHY: address, bits to clear, bits to set. Clearing all bits is a plain write.
pub(super) type Change = (u16, u16, u16);

const fn write(address: u16, value: u16) -> Change {
    (address, 0xffff, value)
}

/// The PHY's settings, in order: some addresses select what the next reaches.
pub(super) const PHY_8125B: [Change; 37] = [
    (0xa442, 0, 0x0800),
    (0xac46, 0x00f0, 0x0090),
    (0xad30, 0x0003, 0x0001),
    write(0xb87c, 0x80f5),
    write(0xb87e, 0x760e),
    write(0xb87c, 0x8107),
    write(0xb87e, 0x360e),
    write(0xb87c, 0x8551),
    (0xb87e, 0xff00, 0x0800),
    (0xbf00, 0xe000, 0xa000),
    (0xbf46, 0x0f00, 0x0300),
    write(0xa436, 0x8044),
    write(0xa438, 0x2417),
    write(0xa436, 0x804a),
    write(0xa438, 0x2417),
    write(0xa436, 0x8050),
    write(0xa438, 0x2417),
    write(0xa436, 0x8056),
    write(0xa438, 0x2417),
    write(0xa436, 0x805c),
    write(0xa438, 0x2417),
    write(0xa436, 0x8062),
    write(0xa438, 0x2417),
    write(0xa436, 0x8068),
    write(0xa438, 0x2417),
    write(0xa436, 0x806e),
    write(0xa438, 0x2417),
    write(0xa436, 0x8074),
    write(0xa438, 0x2417),
    write(0xa436, 0x807a),
    write(0xa438, 0x2417),
    (0xa4ca, 0, 0x0040),
    (0xbf84, 0xe000, 0xa000),
    write(0xa436, 0x8170),
    (0xa438, 0x2700, 0xd800),
    write(0xb87c, 0x8015),
    (0xb87e, 0, 0x0100),
];
