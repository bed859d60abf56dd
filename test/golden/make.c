/* make.c - writes the golden segments into the folder given. */
#include "scenes.h"

int main(int argc, char **argv)
{
    for (int i = 0; argc == 2 && i < SCENES; i++) {
        char path[4096];
        struct rat_buffer out;
        rat_buffer_init(&out, 1 << 20);
        scene_build(i, &out);
        snprintf(path, sizeof path, "%s/%s.ratrace", argv[1], scene_names[i]);
        FILE *file = fopen(path, "wb");
        if (file == NULL || fwrite(out.bytes, 1, out.length, file) != out.length || fclose(file) != 0) {
            perror(path);
            return 1;
        }
        printf("%s: %zu bytes\n", path, out.length);
        rat_buffer_free(&out);
    }
    return argc == 2 ? 0 : 2;
}
