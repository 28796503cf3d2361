/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The identity of a task, which distinguishes programs with the same content. */
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
	 * The last letters of options, one bit each from 'A' on. `code` is for options that are
	 * followed by code, `value` for options that are followed by another value.
	 */
	__u64 code;
	__u64 value;
};

/* The part of a task's identity that distinguishes programs with the same content. */
enum identity_kind {
	IDENTITY_CONTENT = 0,
	IDENTITY_SCRIPT = 1,
	IDENTITY_UNIT = 2,
	IDENTITY_IMAGE = 3,
};

#define IDENTITY_TEXT_LEN 256

/* The name of a script, unit or container, read when a program begins. */
struct identity_name {
	/* A script as it was passed to its interpreter, a unit, or a container's control group. */
	char text[IDENTITY_TEXT_LEN];
	/* The folder that a script's relative name starts from. */
	struct fd_path folder;
};

/* In place of an identity: stands for every identity that has no entry of its own. */
#define IDENTITY_ANY 1

#endif
