/*
 * Converts a colour picture (PPM, "P6") to a grey one (PGM, "P5"), like the transcoder of the
 * Kernel Plugins paper:
 *
 *     tollgate plugin call grey.ec --input photo.ppm --output-data photo.pgm
 *
 * Returns the number of pixels, or -1 if the input is not such a picture.
 */
u8 input[8388608];
u64 input_length;
u8 output[4194304];
u64 output_length;

/* Position of the next input byte. */
static u64 at;

void put(u8 byte) {
	output[output_length] = byte;
	output_length++;
}

/* Reads a number of the header, after blanks and comments. */
u32 number() {
	u32 value = 0;
	while (at < input_length && (input[at] < '0' || input[at] > '9')) {
		if (input[at] == '#')
			while (at < input_length && input[at] != '\n')
				at++;
		else
			at++;
	}
	for (; at < input_length && input[at] >= '0' && input[at] <= '9'; at++)
		value = value * 10 + (input[at] - '0');
	return value;
}

void put_number(u32 value) {
	u8 digits[10];
	u32 count = 0;
	do {
		digits[count] = '0' + value % 10;
		value /= 10;
		count++;
	} while (value);
	while (count > 0) {
		count--;
		put(digits[count]);
	}
}

on call {
	output_length = 0;
	if (input[0] != 'P' || input[1] != '6')
		return -1;
	at = 2;
	u32 width = number(), height = number();
	if (number() != 255)
		return -1;
	/* One blank ends the header. */
	u64 from = at + 1, pixels = (u64) width * height;
	if (from > input_length || pixels > (input_length - from) / 3)
		return -1;
	put('P');
	put('5');
	put('\n');
	put_number(width);
	put(' ');
	put_number(height);
	put('\n');
	put_number(255);
	put('\n');
	u64 to = output_length;
	/* ITU-R BT.601 */
	for (u64 i = 0; i < pixels; i++) {
		output[to + i] = (input[from] * 77 + input[from + 1] * 150 + input[from + 2] * 29) >> 8;
		from += 3;
	}
	output_length = to + pixels;
	return pixels;
}
