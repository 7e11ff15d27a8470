"""Who is compared: Headrace, llama.cpp and OpenVINO GenAI, asked the same."""
