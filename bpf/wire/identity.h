/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The identity of a task, by which programs are distinguished besides their content. */
#ifndef TOLLGATE_WIRE_IDENTITY_H
#define TOLLGATE_WIRE_IDENTITY_H

#include "wire/path.h"

#define INTERPRETERS 20
#define INTERPRETER_NAME_LEN 16

/* An interpreter, whose scripts count as programs: crates/identity/src/script.rs. */
struct interpreter {
	/* The file's name, without a version at the end. */
	char name[INTERPRETER_NAME_LEN];
	/*
	 * Last letters of options, one bit each from 'A' on: of options that code follows, and of
	 * options that another value follows.
	 */
	__u64 code;
	__u64 value;
};

/* What distinguishes programs besides their content. */
enum scope_kind {
	SCOPE_CONTENT = 0,
	SCOPE_SCRIPT = 1,
	SCOPE_UNIT = 2,
	SCOPE_IMAGE = 3,
};

#define SCOPE_TEXT_LEN 256

/* The name of a scope, read when a program begins. */
struct scope_name {
	/* A script as its interpreter was given it, a unit, or a container's control group. */
	char text[SCOPE_TEXT_LEN];
	/* The folder that a script's relative name starts from. */
	struct fd_path folder;
};

/* In place of a scope: every scope without an entry of its own. */
#define SCOPE_ANY 1

#endif
