// The device API for kernels of users: put, signal, putWithSignal, wait, readSignal, putWord, waitWord, flush,
// and their post... names.
//
// docs/device-api.md is its guide. Everything is in namespace weftline.
#pragma once
#include "weftline/device-api/post.cuh"
#include "weftline/device-api/put.cuh"
#include "weftline/device-api/signal.cuh"
#include "weftline/device-api/word.cuh"
