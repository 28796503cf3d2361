// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Five speeds for the two processors of the test machine. The registers are I/O ports of QEMU's
// pc-testdev, which keep what is written to them (hw/misc/pc-testdev.c), so the speeds do not really
// change. With SHARED, both processors have the same speed: _PSD declares one domain, whose
// coordination is SW_ALL (ACPI 6.5, 8.4.5.5).
DefinitionBlock ("", "SSDT", 2, "TOLLGT", "PSTATES ", 1)
{
    External (\_SB.CPUS.C000, DeviceObj)
    External (\_SB.CPUS.C001, DeviceObj)

    Scope (\_SB.CPUS.C000)
    {
        Name (_PCT, Package (2)
        {
            ResourceTemplate () { Register (SystemIO, 8, 0, 0xE0, 1) },
            ResourceTemplate () { Register (SystemIO, 8, 0, 0xE0, 1) }
        })
        // MHz, mW, latency and latency of bus masters in us, control, status
        Name (_PSS, Package (5)
        {
            Package (6) { 3000, 30000, 10, 10, 1, 1 },
            Package (6) { 2400, 20000, 10, 10, 2, 2 },
            Package (6) { 1800, 12000, 10, 10, 3, 3 },
            Package (6) { 1200, 7000, 10, 10, 4, 4 },
            Package (6) { 800, 4000, 10, 10, 5, 5 }
        })
        Name (_PPC, 0)
#ifdef SHARED
        Name (_PSD, Package (1) { Package (5) { 5, 0, 0, 0xFC, 2 } })
#endif
    }

    Scope (\_SB.CPUS.C001)
    {
        Name (_PCT, Package (2)
        {
            ResourceTemplate () { Register (SystemIO, 8, 0, 0xE1, 1) },
            ResourceTemplate () { Register (SystemIO, 8, 0, 0xE1, 1) }
        })
        // MHz, mW, latency and latency of bus masters in us, control, status
        Name (_PSS, Package (5)
        {
            Package (6) { 3000, 30000, 10, 10, 1, 1 },
            Package (6) { 2400, 20000, 10, 10, 2, 2 },
            Package (6) { 1800, 12000, 10, 10, 3, 3 },
            Package (6) { 1200, 7000, 10, 10, 4, 4 },
            Package (6) { 800, 4000, 10, 10, 5, 5 }
        })
        Name (_PPC, 0)
#ifdef SHARED
        Name (_PSD, Package (1) { Package (5) { 5, 0, 0, 0xFC, 2 } })
#endif
    }
}
