"""The phases of the timer's recovery. `delay.timer.recover` lists them in their order."""
