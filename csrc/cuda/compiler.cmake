# Finds nvcc and turns CUDA on; sets CORE_CUDA_FOUND. CORE_CUDA=ON makes a missing or old nvcc an error.
#
# Machine code for the A100, H100, B200 and RTX 50 families. The PTX is of the oldest, so that the driver can compile
# it for every card that has no machine code here, later ones included.
set(CORE_CUDA_OLDEST 12.8)  # the first nvcc that knows all of them
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "80;90a-real;100-real;120-real")
endif()

include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE nvcc_says)
  string(REGEX REPLACE ".*release ([0-9.]+).*" "\\1" nvcc_version "${nvcc_says}")
  if(nvcc_version VERSION_GREATER_EQUAL CORE_CUDA_OLDEST)
    enable_language(CUDA)
    set(CORE_CUDA_FOUND ON)
  else()
    set(missing "nvcc ${nvcc_version} is older than ${CORE_CUDA_OLDEST}")
  endif()
else()
  set(missing "there is no nvcc")
endif()

if(missing AND CORE_CUDA STREQUAL "ON")
  message(FATAL_ERROR "CORE_CUDA=ON, but ${missing}: put one on PATH, set CUDACXX, or build with CORE_CUDA=OFF")
elseif(missing)
  message(STATUS "core_cuda is left out: ${missing}")
endif()
