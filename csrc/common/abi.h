// Writing down facts of the ABI: see CoreAbiEntry.
#pragma once

#include <cstddef>

#define RECORD(Struct) {#Struct, alignof(Struct), sizeof(Struct)}
#define FIELD(Struct, field) {#Struct "." #field, offsetof(Struct, field), sizeof(Struct::field)}
#define CONSTANT(name) {#name, name, 0}
