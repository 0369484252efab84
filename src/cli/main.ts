#!/usr/bin/env node
// The weftline command.
import { Command } from 'commander';
import { addDoctorCommand } from './doctor-command.ts';

const program = new Command('weftline').description('Expert-parallel communication for mixture-of-experts models');
addDoctorCommand(program);
await program.parseAsync();
