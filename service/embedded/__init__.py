"""The parts of `remora up` as processes of one machine."""
