#!/usr/bin/env node
// The weftline command.
import { Command } from 'commander';

const program = new Command('weftline').description('Expert-parallel communication for mixture-of-experts models');
await program.parseAsync();
