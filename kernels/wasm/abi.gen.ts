// Generated from src/abi by src/abi/emit.ts. Do not edit.

