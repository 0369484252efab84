// Trace points of kernels: where time goes, by name. They expand to nothing unless something defines them before.
#pragma once

#ifndef WEFTLINE_TRACE_BEGIN
#define WEFTLINE_TRACE_BEGIN(point)
#define WEFTLINE_TRACE_END(point)
#endif
