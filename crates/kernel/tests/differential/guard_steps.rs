//! Runs the guard's kernel side on calls that no thread makes (bpf/guard/steps.bpf.c).

use std::mem::MaybeUninit;

use kernel::Result;
use kernel::guard::profile::KernelProfile;
use kernel::mapped_array::MappedArray;
use kernel::wire;
use libbpf_rs::ProgramInput;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use skeleton::{GuardStepsSkel, GuardStepsSkelBuilder};

#[allow(clippy::all, clippy::undocumented_unsafe_blocks, dead_code, unused)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/guard_steps.skel.rs"));
}

/// A profile and some threads.
pub struct GuardStepper {
    skeleton: GuardStepsSkel<'static>,
    parameters: MappedArray<wire::guard_parameters>,
    threads: MappedArray<wire::thread_state>,
    cold: MappedArray<wire::guard_cold>,
    steps: MappedArray<wire::guard_step>,
    pub profile: KernelProfile,
}

impl GuardStepper {
    pub fn new() -> Result<Self> {
        let object = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut skeleton =
            GuardStepsSkelBuilder::default().open(object).expect("the object can be read");
        let constants = skeleton.maps.rodata_data.as_deref_mut().expect("the guard has constants");
        constants.config.call_flags = kernel::gate::call_flags();
        let skeleton = skeleton.load().expect("it loads as root");
        let maps = &skeleton.maps;
        let mut profile = KernelProfile::new(MappedArray::new(&maps.bss_s_profile, 1)?, Vec::new());
        for index in 1..=wire::GUARD_OVERFLOW_MAX {
            profile.add_overflow(&maps.guard_overflow_windows, index)?;
        }
        Ok(Self {
            parameters: MappedArray::new(&maps.bss_s_param, 1)?,
            threads: MappedArray::new(&maps.bss_s_threads, wire::GUARD_STEP_THREADS)?,
            cold: MappedArray::new(&maps.bss_guard, wire::GUARD_STEP_THREADS)?,
            steps: MappedArray::new(&maps.bss_steps, wire::GUARD_STEPS)?,
            profile,
            skeleton,
        })
    }

    /// Starts again, with an empty profile and threads without calls.
    pub fn start(&mut self, parameters: wire::guard_parameters) {
        self.parameters.write(0, parameters);
        for index in 0..self.threads.entries() {
            let guard = wire::guard_hot { batch_left: 1, batch_size: 1, ..Default::default() };
            let slot = index as u16;
            self.threads.write(index, wire::thread_state { slot, guard, ..Default::default() });
            self.cold.write(index, wire::guard_cold::default());
        }
        self.profile.empty();
    }

    /// Takes the steps one after the other, and fills in the result of each.
    ///
    /// # Panics
    /// If there are more than [`wire::GUARD_STEPS`].
    pub fn take(&mut self, steps: &mut [wire::guard_step]) {
        for (index, step) in steps.iter().enumerate() {
            self.steps.write(index as u32, *step);
        }
        self.skeleton.maps.bss_data.as_deref_mut().expect("it counts its steps").step_count =
            steps.len() as u32;
        self.skeleton.progs.guard_steps.test_run(ProgramInput::default()).expect("it runs");
        for (index, step) in steps.iter_mut().enumerate() {
            *step = self.steps.read(index as u32);
        }
    }

    /// Threads add their calls to the profile in batches. This makes each thread end its batch at
    /// its next call, so that a change of the profile takes effect at that call, as in the
    /// reference.
    pub fn end_batches(&self) {
        for index in 0..self.threads.entries() {
            let thread = self.threads.read(index);
            let batch_size = thread.guard.batch_size - thread.guard.batch_left + 1;
            let guard = wire::guard_hot { batch_left: 1, batch_size, ..thread.guard };
            self.threads.write(index, wire::thread_state { guard, ..thread });
        }
    }

    /// As [`KernelProfile::normalize`], but first discards the calls of unfinished batches.
    pub fn normalize(&self) {
        for index in 0..self.threads.entries() {
            let thread = self.threads.read(index);
            let guard = wire::guard_hot { batch_left: 1, batch_size: 1, ..thread.guard };
            self.threads.write(index, wire::thread_state { guard, ..thread });
        }
        self.profile.normalize();
    }
}
