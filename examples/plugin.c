/*
 * Lets a daemon's plugin convert a PPM to grey, in memory that both share:
 *
 *     tollgate plugin load examples/grey.ec
 *     cc -o plugin -I crates/libtollgate/include examples/plugin.c \
 *         target/x86_64-unknown-linux-gnu/release/libtollgate.a
 *     ./plugin < photo.ppm > grey.pgm
 */
#include <stdio.h>
#include <tollgate.h>

int main(void)
{
	struct tollgate_plugin *plugin = tollgate_plugin_open("grey");
	size_t room = 0;
	uint64_t *input_length, *output_length;
	void *input, *output;
	int result = 0;

	if (!plugin) {
		fprintf(stderr, "plugin: %s\n", tollgate_error());
		return 1;
	}
	input = tollgate_plugin_variable(plugin, "input", &room);
	output = tollgate_plugin_variable(plugin, "output", NULL);
	input_length = tollgate_plugin_variable(plugin, "input_length", NULL);
	output_length = tollgate_plugin_variable(plugin, "output_length", NULL);
	if (!input || !output || !input_length || !output_length) {
		fprintf(stderr, "plugin: the plugin named grey is not examples/grey.ec\n");
		return 1;
	}
	*input_length = fread(input, 1, room, stdin);
	if (tollgate_plugin_call(plugin, NULL, 0, &result) || result < 0) {
		fprintf(stderr, "plugin: %s\n", result < 0 ? "this is no PPM" : tollgate_error());
		return 1;
	}
	fwrite(output, 1, *output_length, stdout);
	tollgate_plugin_close(plugin);
	return 0;
}
