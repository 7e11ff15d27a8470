"""The servers that are compared: Headrace, llama.cpp and OpenVINO GenAI, with the same requests."""
